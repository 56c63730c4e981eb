"""Draw a timeline as a picture, or write it as a page."""

from collections.abc import Sequence
from pathlib import Path

from commsched.timeline.model import Timeline


def draw(
    predicted: Timeline,
    measured: Timeline | None,
    path: str | Path,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
) -> None:
    """Draw one step as .png or .svg, or write all steps as an .html page that opens at it."""
    if Path(path).suffix.lower() == ".html":
        from commsched.plot import html

        html.draw(predicted, measured, path, step, ranks)
    else:
        from commsched.plot import timeline

        timeline.draw(predicted, measured, path, step, ranks)
