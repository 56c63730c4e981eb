"""Timelines: spans of all ranks, predicted or measured, and their file."""
