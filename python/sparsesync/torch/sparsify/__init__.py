"""Sparsifiers: their options, their state in a training step, and their entries in a checkpoint."""
