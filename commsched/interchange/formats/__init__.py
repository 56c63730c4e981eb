"""Formats that `commsched import` reads: one file per format. Their machinery is in the room."""
