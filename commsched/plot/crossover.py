"""Draw which method is the fastest over density and bandwidth, as PNG or SVG."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from commsched.plot.picture import picture

# Source: palette of Okabe & Ito, "Color Universal Design", 2008, lighter; then tints of it.
COLOURS = (
    "#7FC4EE",
    "#F0C35A",
    "#66C2A5",
    "#DDA0C4",
    "#E08A5B",
    "#5B9BC8",
    "#F5EC8A",
    "#BBBBBB",
    "#B4DDF5",
    "#F7DFA6",
    "#A8DEC9",
    "#EECFE1",
)
LETTERS = "abcdefghijkl"


def draw(
    densities: Sequence[float],
    rates: Sequence[float],
    winners: Sequence[Sequence[str]],
    path: str | Path,
    title: str,
) -> None:
    """Draw `winners[i][j]`, the method at density i and bandwidth j, B/s; both axes logarithmic."""
    flat = [name for row in winners for name in row]
    names = sorted(set(flat), key=lambda name: (-flat.count(name), name))
    shown, rest = names[: len(COLOURS) - 1], names[len(COLOURS) - 1 :]
    labels = [*shown, f"{len(rest)} others"] if rest else shown
    place = {name: min(i, len(COLOURS) - 1) for i, name in enumerate(names)}
    grid = np.array([[place[name] for name in row] for row in winners])
    with picture(path, (8.5, 4.8)) as figure:
        _draw_map(figure, densities, rates, grid, labels)
        figure.text(0.11, 0.97, title, va="top", fontsize=10, linespacing=1.4)


def _draw_map(
    figure: Figure,
    densities: Sequence[float],
    rates: Sequence[float],
    grid: np.ndarray,
    labels: list[str],
) -> None:
    """Draw the regions, a letter in each, and the legend."""
    axes = figure.add_axes((0.11, 0.13, 0.56, 0.74))
    colours = ListedColormap(COLOURS[: len(labels)])
    norm = BoundaryNorm(np.arange(len(labels) + 1) - 0.5, len(labels))
    axes.pcolormesh(
        np.array(rates) * 8e-9, densities, grid, cmap=colours, norm=norm, shading="nearest"
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bandwidth between nodes in Gbit/s")
    axes.set_ylabel("density of one rank's gradient")
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)
    for i in range(len(labels)):
        _letter(axes, np.array(rates) * 8e-9, np.array(densities), grid == i, LETTERS[i])
    handles = [
        Patch(color=COLOURS[i], label=f"{LETTERS[i]}  {label}") for i, label in enumerate(labels)
    ]
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(1.02, 1.0), frameon=False, fontsize=9
    )


def _letter(axes: Any, x: np.ndarray, y: np.ndarray, mask: np.ndarray, letter: str) -> None:
    """Write a letter into the middle of a region, at a cell that is its own."""
    rows, columns = np.nonzero(mask)
    if len(rows) < 4:
        return
    near = (rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2
    at = int(near.argmin())
    axes.text(x[columns[at]], y[rows[at]], letter, ha="center", va="center", fontsize=11)
