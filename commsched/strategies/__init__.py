"""Strategies turn a plan into each rank's operations: one file or folder per strategy."""
