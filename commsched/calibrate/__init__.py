"""Measure a machine with its own ranks, and fit it to exchanges as a training step has them."""
