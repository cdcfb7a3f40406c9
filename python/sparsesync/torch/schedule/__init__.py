"""Buckets of gradients and their schedule: what crosses when, and the results that are still on their way."""
