"""Comparison of published numbers with the library's predictions."""
