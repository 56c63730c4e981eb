"""Draw the losses and accuracies of trainings over their steps."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from commsched.plot.accuracy import COLOURS
from commsched.plot.picture import check_suffix, picture
from commsched.training_log import HeldOutRow, Line, LogHeader, LogRow, read
from commsched.units import count

WINDOW = 40  # of the steps: the thick curve is a mean over one such part
Floats = npt.NDArray[np.float64]


def draw(paths: Sequence[Path], path: Path) -> None:
    """Draw logs to PNG or SVG: losses on the left, accuracies on the right.

    Thin: each step's batch; thick: their running mean; dots: what is held out.
    """
    check_suffix(path)
    logs = [read(log) for log in paths]
    with picture(path, (10.0, 4.2)) as figure:
        left, right = figure.subplots(1, 2)
        for log, colour in zip(logs, COLOURS * len(logs), strict=False):
            _curves(left, log, colour, "loss")
            _curves(right, log, colour, "accuracy")
        left.set_ylabel("loss, nats per guess")
        right.set_ylabel("right guesses")
        right.yaxis.set_major_formatter(mpl.ticker.PercentFormatter(1.0))
        for axes in (left, right):
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(color="0.93", lw=0.6)
            axes.set_axisbelow(True)
        left.legend(frameon=False, fontsize=8)
        figure.tight_layout()


def _curves(axes: Axes, log: Sequence[Line], colour: str, what: str) -> None:
    """One training; a loss that is no number leaves a gap."""
    header = log[0]
    assert isinstance(header, LogHeader)
    rows = [line for line in log if isinstance(line, LogRow)]
    held = [line for line in log if isinstance(line, HeldOutRow)]
    steps, values = _columns(rows, what)
    name = f"{header.net}, {header.strategy}, {count(header.ranks, 'rank')}"
    axes.plot(steps, values, color=colour, lw=0.5, alpha=0.4)
    axes.plot(steps, _smooth(values), color=colour, lw=1.6, label=name)
    dots = _columns(held, what)
    axes.plot(*dots, ls="", marker="o", ms=6, mfc="none", mew=1.3, color=colour, label="held out")


def _columns(lines: Sequence[LogRow | HeldOutRow], what: str) -> tuple[Floats, Floats]:
    steps = np.array([line.step for line in lines], np.float64)
    return steps, np.array([getattr(line, what) for line in lines], np.float64)


def _smooth(values: Floats) -> Floats:
    """A mean over the last part of the steps; at first over those there are."""
    sums = np.concatenate([[0.0], np.nancumsum(values)])
    there = np.concatenate([[0], np.cumsum(np.isfinite(values))])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - max(1, len(values) // WINDOW))
    found: Floats = (sums[ends] - sums[starts]) / np.maximum(1, there[ends] - there[starts])
    return found
