"""Formats that `commsched import` reads: one file per format."""
