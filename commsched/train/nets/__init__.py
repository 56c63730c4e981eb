"""Nets that are trained here: one file per net, or per family of nets."""
