"""The figure of trainings' losses and accuracies over steps or seconds."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from commsched import files
from commsched.errors import CommschedError
from commsched.plot import legend
from commsched.plot.accuracy import COLOURS
from commsched.plot.picture import check_suffix, picture
from commsched.plot.style import Style
from commsched.training_log import HeldOutRow, Line, LogHeader, LogRow, read
from commsched.units import count

WINDOW = 40  # the thick curve is a mean over 1 / WINDOW of the steps
Floats = npt.NDArray[np.float64]
Steps = tuple[str, list[LogRow]]  # name in the legend, lines of the log
HeldOut = tuple[str, list[HeldOutRow]]


X = {"step": "step", "seconds": "seconds of steps"}  # axis -> its label
DASHES = ("-", "--", ":")  # for trainings beyond the number of colours


def draw(paths: Sequence[Path], path: Path, x: str = "step", style: Style | None = None) -> None:
    """Draw logs to PNG, SVG or PDF: losses on the left, accuracies on the right.

    Thin: each step's batch; thick: running mean of these; dots: held-out samples. The n-th training
    always has the n-th colour.
    """
    check_suffix(path)
    if x not in X:
        raise CommschedError(f"no axis {x!r} of trainings; known: {', '.join(X)}")
    style = style or Style(width=10.0, font=10.0)
    logs = [read(log) for log in paths]
    names = [f"{files.stem(log)}: " if len(paths) > 1 else "" for log in paths]
    looks = ((colour, dashes) for dashes in cycle(DASHES) for colour in COLOURS)
    small = 0.8 * style.font
    trainings = [_series(name, log) for name, log in zip(names, logs, strict=True)]
    entries = [said for both in trainings for said, lines in both if lines]
    more, one = (legend.height(some, style.width, small) for some in (entries, entries[:1]))
    size = style.width, style.height or 0.42 * style.width + more - one
    dpi = 150 if style.width > 7 else 300
    with picture(path, size, dpi, {"font.size": style.font}) as figure:
        figure.set_layout_engine("constrained")
        left, right = figure.subplots(1, 2)
        for training, look in zip(trainings, looks, strict=False):
            for axes, what in ((left, "loss"), (right, "accuracy")):
                _curves(axes, training, look, x, what)
        left.set_ylabel("loss, nats per guess")
        right.set_ylabel("right guesses")
        right.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
        for axes in (left, right):
            axes.set_xlabel(X[x])
            axes.xaxis.set_major_locator(MaxNLocator(integer=x == "step"))
            axes.grid(color="0.93", lw=0.6)
            axes.set_axisbelow(True)
        figure.legend(
            *left.get_legend_handles_labels(),
            loc="outside lower center",
            ncols=legend.columns(entries, style.width, small),
            frameon=False,
            fontsize=small,
        )
        if style.title:
            figure.suptitle(style.title)


def _series(name: str, log: Sequence[Line]) -> tuple[Steps, HeldOut]:
    """Return the steps of a log and its held-out scores, each with its name in the legend."""
    header = log[0]
    assert isinstance(header, LogHeader)
    rows = [line for line in log if isinstance(line, LogRow)]
    held = [line for line in log if isinstance(line, HeldOutRow)]
    said = f"{name}{header.net}, {header.strategy}, {count(header.ranks, 'rank')}"
    return (said, rows), (f"{name}held out", held)


def _curves(
    axes: Axes, training: tuple[Steps, HeldOut], look: tuple[str, str], x: str, what: str
) -> None:
    """Draw one training; a loss that is not finite leaves a gap."""
    ((said, rows), (said_held, held)), (colour, dashes) = training, look
    font = mpl.rcParams["font.size"]
    steps, values = _columns(rows, what)
    ends = np.cumsum([row.seconds for row in rows]) if x == "seconds" else steps
    if rows:
        axes.plot(ends, values, color=colour, lw=0.05 * font, alpha=0.4)
        axes.plot(ends, _smooth(values), color=colour, lw=0.16 * font, ls=dashes, label=said)
    after, scores = _columns(held, what)
    at = np.interp(after, steps, ends) if rows else after
    dots = {"marker": "o", "ms": 0.6 * font, "mfc": "none", "mew": 0.13 * font}
    if held:
        axes.plot(at, scores, ls="", color=colour, label=said_held, **dots)


def _columns(lines: Sequence[LogRow | HeldOutRow], what: str) -> tuple[Floats, Floats]:
    steps = np.array([line.step for line in lines], np.float64)
    return steps, np.array([getattr(line, what) for line in lines], np.float64)


def _smooth(values: Floats) -> Floats:
    """Return means over the last part of the steps, or all earlier ones; NaN: no finite value."""
    sums = np.concatenate([[0.0], np.nancumsum(values)])
    there = np.concatenate([[0], np.cumsum(np.isfinite(values))])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - max(1, len(values) // WINDOW))
    count = there[ends] - there[starts]
    found: Floats = np.where(count > 0, (sums[ends] - sums[starts]) / np.maximum(1, count), np.nan)
    return found
