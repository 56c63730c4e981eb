"""Planners: they choose buckets of tensors, a method for each bucket, and the order."""
