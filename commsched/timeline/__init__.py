"""Timelines: spans of all ranks, predicted or measured, and their file."""

from commsched.timeline.file import read, write
from commsched.timeline.model import Span, Timeline

__all__ = ["Span", "Timeline", "read", "write"]
