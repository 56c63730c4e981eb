"""The workers of a training: one file per kind of strategy."""
