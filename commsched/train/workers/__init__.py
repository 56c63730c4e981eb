"""The workers that compute during a training: one file per kind of strategy."""
