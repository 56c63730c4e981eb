"""Sentences above the data of a panel: wrapped to its width, with room made for them."""

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.text import Text

INSIDE = 0.93  # share of the panel's width that a line may fill: ticks may still move the axis
MOST = 0.7  # share of the panel's height that notes may take


class Note(NamedTuple):
    """A sentence and its colour."""

    text: str
    colour: str


def write_notes(panel: Axes, notes: Sequence[Note], font: float) -> None:
    """Write notes at the top of a panel whose place is laid out, and raise its axis above the data.

    `font` is in pt.
    """
    top = 1.0
    for note in notes:
        text = panel.text(0.5, top, "", fontsize=font, color=note.colour, ha="center", va="top")
        text.set_transform(panel.transAxes)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})
        _wrap(text, note.text, INSIDE * panel.bbox.width)
        top -= 1.1 * text.get_window_extent().height / panel.bbox.height
    low, high = panel.get_ylim()
    panel.set_ylim(low, low + (high - low) / max(top, 1 - MOST))


def _wrap(text: Text, words: str, width: float) -> None:
    """Break a text into lines of at most `width` pixels where its words allow it."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        text.set_text(longer)
        if lines[-1] and text.get_window_extent().width > width:
            lines.append(word)
        else:
            lines[-1] = longer
    text.set_text("\n".join(lines))
