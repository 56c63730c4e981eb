"""Notes above the data of a panel, wrapped to its width; the axis is raised to make room."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.text import Text

from commsched.plot.title import wrapped

INSIDE = 0.93  # share of the panel's width that a line may fill: ticks may still move the axis
MOST = 0.7  # share of the panel's height that notes may take


class Note(NamedTuple):
    """A sentence and its colour."""

    text: str
    colour: str


def write_notes(panel: Axes, notes: Sequence[Note], font: float) -> None:
    """Write notes at the top of a laid-out panel, and raise its axis above the data.

    `font` is in pt.
    """
    top = 1.0
    for note in notes:
        text = panel.text(0.5, top, "", fontsize=font, color=note.colour, ha="center", va="top")
        text.set_transform(panel.transAxes)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.3})
        lines = wrapped(note.text, partial(_fits, text, INSIDE * panel.bbox.width))
        text.set_text("\n".join(lines))
        top -= 1.1 * text.get_window_extent().height / panel.bbox.height
    low, high = panel.get_ylim()
    panel.set_ylim(low, low + (high - low) / max(top, 1 - MOST))


def _fits(text: Text, width: float, line: str) -> bool:
    """Tell whether a line takes at most `width` pixels, by writing it."""
    text.set_text(line)
    return bool(text.get_window_extent().width <= width)
