"""Sparsifiers: as users name them, at work on a module, and what they owe in a checkpoint."""
