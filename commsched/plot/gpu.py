"""The figure of `bench gpu`: codecs and messages against a copy, and steps against predictions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes

from commsched.plot.accuracy import COLOURS
from commsched.plot.picture import picture

CHARACTERS = 150  # of a line of the title
Rows = Sequence[Mapping[str, Any]]


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw a document of `bench gpu` to PNG or SVG; black marks are the required values."""
    with picture(path, (12.0, 5.2)) as figure:
        left, middle, right = figure.subplots(1, 3, width_ratios=(5, 4, 7))
        _codecs(left, found["codecs"])
        _messages(middle, found["messages"])
        _steps(right, found["steps"])
        known = found["versions"]
        told = fill(", ".join(f"{key} {known[key]}" for key in known), CHARACTERS)
        figure.suptitle(told, fontsize=7, y=0.995)
        figure.tight_layout()


def _codecs(axes: Axes, rows: Rows) -> None:
    """Draw the bytes per second of codecs, relative to a copy's."""
    names = [row["codec"] for row in rows]
    axes.barh(names, [100 * row["of_copy"] for row in rows], color=COLOURS[0])
    for place, row in enumerate(rows):
        if row["asked"] is not None and row["codec"] != "partition":
            axes.plot([100 * row["asked"]], [place], "k|", ms=14, mew=2)
    axes.invert_yaxis()
    axes.set_xlabel("fewest bytes per second, % of a copy's")
    axes.set_title("codecs", fontsize=10)


def _messages(axes: Axes, rows: Rows) -> None:
    """Draw the bytes per second between two ranks."""
    for number, row in enumerate(rows):
        told = f" over {row['over']}" if row["over"] else ""
        ways = [("copy", "copy to pinned"), ("hosted", "host to host")]
        ways += [("staged", "staged"), ("pointed", "by pointers")]
        shown = [(f"{name}{told}", row[key]) for key, name in ways if row[key] is not None]
        names, times = zip(*shown, strict=True)
        rates = [row["nbytes"] / seconds * 1e-9 for seconds in times]
        axes.barh(names, rates, color=COLOURS[1 + number])
    axes.invert_yaxis()
    axes.set_xlabel("GB/s")
    axes.set_title("a message between two ranks", fontsize=10)


def _steps(axes: Axes, rows: Rows) -> None:
    """Draw predicted beside measured iterations, cell by cell."""
    places = range(len(rows))
    for shift, key in ((-0.2, "predicted"), (0.2, "measured")):
        values = [1e3 * row[key] for row in rows]
        colour = COLOURS[0 if key == "predicted" else 1]
        axes.bar([place + shift for place in places], values, 0.4, label=key, color=colour)
    names = [f"{row['net']} {row['method']}, {row['bed']}" for row in rows]
    axes.set_xticks(list(places), names, rotation=90, fontsize=7)
    axes.set_ylabel("ms per step")
    axes.set_title("ranks that share the GPUs", fontsize=10)
    if rows:
        axes.legend(frameon=False)
