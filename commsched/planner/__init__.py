"""Planners: which tensors travel together, by which method, and in which order."""
