"""Small array kernels that work on NumPy and CuPy arrays alike."""
