"""Layers of the nets that are trained here, on arrays of any module."""
