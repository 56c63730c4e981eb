"""The output of a timeline as a picture or as a page."""

from collections.abc import Sequence
from pathlib import Path

from commsched.plot.style import PLAIN, Style
from commsched.timeline.model import Timeline


def draw(
    sides: Sequence[Timeline],
    path: str | Path,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
    style: Style = PLAIN,
) -> None:
    """Draw one step of one or two timelines, or write all steps as an .html page."""
    if Path(path).suffix.lower() == ".html":
        from commsched.plot import html

        html.draw(sides, path, step, ranks, style.names)
    else:
        from commsched.plot import timeline

        timeline.draw(sides, path, step, ranks, style)
