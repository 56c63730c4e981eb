"""Real networks in NumPy and CuPy, for training runs."""
