"""Draw predicted against measured iteration times, log-log, with a band of +-10 %."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.path import Path as Outline
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from commsched.plot.picture import picture

BAND = 0.10
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS: tuple[str | Outline, ...] = (*"os^Dv<>Pp*Xhd8H", Outline.unit_regular_star(4))


class AccuracyRow(Protocol):
    """A cell of a validation; s."""

    @property
    def fabric(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def predicted(self) -> float: ...
    @property
    def measured(self) -> float: ...
    @property
    def collectives(self) -> Sequence[tuple[float, float]]: ...


def draw(rows: Sequence[AccuracyRow], path: Path) -> None:
    """Draw at least one row to PNG or SVG: whole iterations on the left, exchanges on the right."""
    fabrics = list(dict.fromkeys(row.fabric for row in rows))
    families = list(dict.fromkeys(row.family for row in rows))
    with picture(path, (11.0, 5.6)) as figure:
        both = figure.subplots(1, 2)
        for axes, what in zip(both, ("iterations", "exchanges"), strict=True):
            _panel(axes, rows, fabrics, families, what)
        handles = [
            *(
                Line2D([], [], ls="", marker="o", color=_colour(i), label=f)
                for i, f in enumerate(fabrics)
            ),
            *(
                Line2D([], [], ls="", marker=_marker(i), color="0.4", label=f)
                for i, f in enumerate(families)
            ),
        ]
        figure.legend(
            handles=handles,
            loc="lower center",
            ncols=8,
            frameon=False,
            fontsize=8,
            title="colour: network; shape: method",
        )
        figure.subplots_adjust(left=0.07, right=0.985, top=0.9, bottom=0.23, wspace=0.2)


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _marker(index: int) -> str | Outline:
    return MARKERS[index % len(MARKERS)]


def _panel(
    axes: Axes, rows: Sequence[AccuracyRow], fabrics: list[str], families: list[str], what: str
) -> None:
    whole = what == "iterations"
    found = [
        1e3 * np.array([(row.predicted, row.measured)] if whole else row.collectives).T
        for row in rows
    ]
    ends = np.concatenate([pairs.ravel() for pairs in found])
    low, high = 0.8 * ends[ends > 0].min(), 1.25 * ends.max()
    for row, (p, m) in zip(rows, found, strict=True):
        axes.plot(
            m,
            np.maximum(p, low),  # what is predicted to take no time lies on the edge
            ls="",
            marker=_marker(families.index(row.family)),
            color=_colour(fabrics.index(row.fabric)),
            ms=7 if whole else 4,
            alpha=0.85 if whole else 0.5,
            mec="white",
            mew=0.5,
        )
    line = np.array([low, high])
    axes.plot(line, line, color="0.3", lw=0.8, zorder=0)
    axes.fill_between(line, line * (1 - BAND), line * (1 + BAND), color="0.88", lw=0, zorder=-1)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("predicted, ms")
    errors = [abs(row.predicted / row.measured - 1) for row in rows]
    if not whole:
        errors = [abs(p / m - 1) for row in rows for p, m in row.collectives]
    axes.set_title(
        f"{len(errors)} {what}\nmedian error {np.median(errors):.1%},"
        f" p90 {np.quantile(errors, 0.9):.1%} (band \N{PLUS-MINUS SIGN}{BAND:.0%})",
        fontsize=10,
    )
    axes.grid(which="major", color="0.93", lw=0.6)
    axes.set_axisbelow(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 3, 4, 5, 7) if high < 10 * low else (1, 2, 5))
        )
        axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axis.set_minor_formatter(NullFormatter())
