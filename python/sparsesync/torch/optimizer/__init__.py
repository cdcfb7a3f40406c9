"""Clipping, loss scaling, and optimizers that update each parameter when its gradient arrives."""
