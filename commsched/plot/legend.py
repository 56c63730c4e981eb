"""The space of a legend: its columns by the width of its texts, and its height."""

from collections.abc import Sequence

INCH = 72.0  # pt
LETTER = 0.58  # width of a letter, in sizes of the font
HANDLE = 0.45  # in, beside a text
LINE = 1.5  # sizes of the font


def columns(names: Sequence[str], width: float, font: float) -> int:
    """Count the columns of a legend in `width` inches; font: pt."""
    longest = max(map(len, names), default=0) * LETTER * font / INCH + HANDLE
    return max(1, min(len(names), int(width / longest)))


def height(names: Sequence[str], width: float, font: float) -> float:
    """Return the height of a legend, in."""
    return (0.5 - (-len(names) // columns(names, width, font))) * LINE * font / INCH
