"""Buckets of gradients and their schedule: what is sent when, and the results in transit."""
