"""Nets from other programs' files: one file per format in `formats`, what they share beside it."""
