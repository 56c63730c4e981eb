"""The figure of predictions' signed errors, cell by cell, along the dimensions of the cells."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from commsched.plot.picture import picture

LETTER = 0.22  # width of a title's letter, in widths of a category
EDGE = 0.6  # larger errors are drawn at this value
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9")
MISSED = "#C00000"
T = TypeVar("T")


def draw(
    rows: Sequence[T],
    error: Callable[[T], float],
    group: Callable[[T], str],
    dimensions: Mapping[str, Callable[[T], str]],
    limits: Mapping[str, float],
    path: Path,
) -> None:
    """Draw at least one row to PNG or SVG: a panel per dimension, a point per cell.

    `limits` are the largest median errors of groups; a median beyond the largest limit is red.
    """
    groups = list(dict.fromkeys(map(group, rows)))
    sizes = {name: len({of(row) for row in rows}) for name, of in dimensions.items()}
    widest = max(sizes, key=lambda name: sizes[name])
    others = [name for name in dimensions if name != widest]
    with picture(path, (12.0, 8.4)) as figure:
        grid = figure.add_gridspec(
            2, len(others), width_ratios=[max(sizes[name], LETTER * len(name)) for name in others]
        )
        places = {name: grid[0, i] for i, name in enumerate(others)} | {widest: grid[1, :]}
        most = max(limits.values())
        for name, of in dimensions.items():
            axes = figure.add_subplot(places[name])
            _panel(axes, rows, error, group, of, groups, most)
            axes.set_title(name, fontsize=9, loc="left")
            first = places[name].is_first_col()
            axes.tick_params(labelleft=first)
            axes.set_ylabel("predicted / measured - 1" if first else "")
        handles = [
            *(
                Line2D([], [], ls="", marker="o", ms=4, color=_colour(i), label=g)
                for i, g in enumerate(groups)
            ),
            Line2D(
                [],
                [],
                color="0.2",
                lw=2,
                label=f"median (red: typically off by more than {most:.0%})",
            ),
        ]
        figure.legend(handles=handles, loc="lower center", ncols=6, frameon=False, fontsize=8)
        figure.subplots_adjust(
            left=0.06, right=0.99, top=0.96, bottom=0.16, wspace=0.08, hspace=0.5
        )


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _panel(
    axes: Axes,
    rows: Sequence[T],
    error: Callable[[T], float],
    group: Callable[[T], str],
    of: Callable[[T], str],
    groups: list[str],
    most: float,
) -> None:
    names = sorted({of(row) for row in rows})
    axes.axhspan(-most, most, color="0.93", lw=0, zorder=-1)
    axes.axhline(0.0, color="0.5", lw=0.8, zorder=0)
    for place, name in enumerate(names):
        here = [row for row in rows if of(row) == name]
        errors = np.array([error(row) for row in here])
        beside = np.linspace(-0.28, 0.28, len(here)) if len(here) > 1 else np.zeros(1)
        for row, x, value in zip(here, beside, errors, strict=True):
            outside = abs(value) > EDGE
            axes.plot(
                place + x,
                np.clip(value, -EDGE, EDGE),
                ls="",
                marker=("^" if value > 0 else "v") if outside else "o",
                ms=3.5,
                color=_colour(groups.index(group(row))),
                alpha=0.8,
                mew=0,
                clip_on=False,
            )
        middle = float(np.median(errors))
        missed = float(np.median(np.abs(errors))) > most
        axes.plot(
            [place - 0.36, place + 0.36],
            [np.clip(middle, -EDGE, EDGE)] * 2,
            color=MISSED if missed else "0.2",
            lw=2,
        )
    axes.set(ylim=(-EDGE, EDGE), xlim=(-0.6, len(names) - 0.4))
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    ticks = np.arange(-0.6, 0.61, 0.2)
    axes.set_yticks(ticks, [f"{tick:+.0%}" for tick in ticks], fontsize=7)
    axes.grid(axis="y", color="0.9", lw=0.5)
    axes.set_axisbelow(True)
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
