"""The map of the fastest method over density and bandwidth, as PNG, SVG or PDF."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from commsched.arrays import Bools, Floats
from commsched.plot.picture import picture

# In every figure a method has the colour of its family, lightened by codec.
HUES = {
    "node-union": "#0072B2",
    "all-gather": "#E69F00",
    "all-gather-direct": "#009E73",
    "halving-doubling": "#D55E00",
    "doubling": "#8C4A1B",
    "native": "#7F7F7F",
    "ring": "#56B4E9",
    "hierarchical": "#CC79A7",
    "direct": "#7A5BA6",
    "tree": "#5B7F3A",
    "zen": "#C2A500",
    "omnireduce": "#1B7F8C",
    "sparse-ps": "#B0476B",
    "centralised": "#3F51B5",
    "dsar": "#6B8E23",
    "powersgd": "#4A4A4A",
}
OTHERS = "#BBBBBB"  # families without their own colour
SHADES = {"dense": 0.25, "fp16": 0.4, "bf16": 0.5, "bitmap": 0.7, "coo": 0.45, "elias": 0.6}
FINE = 32  # drawn cells per priced cell
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
LEAST = 0.0005  # share of the map: smaller islands have no letter
ROOM = 0.072  # in, of a letter of the legend


class Priced(Protocol):
    """The result of `planner.crossover.winners`."""

    @property
    def densities(self) -> Sequence[float]: ...
    @property
    def rates(self) -> Sequence[float]: ...
    @property
    def methods(self) -> Sequence[str]: ...
    @property
    def seconds(self) -> Floats: ...


def colour(method: str) -> str:
    """Return the colour of a method, the same in every figure."""
    family, _, codec = method.partition("+")
    white = SHADES.get(codec.partition(":")[0], 0.35)
    return to_hex(tuple(white + (1 - white) * part for part in to_rgb(HUES.get(family, OTHERS))))  # type: ignore[arg-type]


def draw(found: Priced, path: str | Path, title: str, own: float | None = None) -> None:
    """Draw the regions in which each method is the fastest; `own` B/s is marked."""
    best = np.asarray(_refined(found).argmin(axis=-1))
    count = np.bincount(best.ravel(), minlength=len(found.methods))
    order = [i for i in np.argsort(-count, kind="stable").tolist() if count[i]]
    names = [found.methods[i] for i in order]
    width = 6.2 + ROOM * max(map(len, names)) + 0.6
    height = max(4.6, 1.3 + 0.2 * len(names))
    with picture(path, (width, height)) as figure:
        axes = figure.add_axes((0.8 / width, 0.6 / height, 5.1 / width, 1 - 1.25 / height))
        low, high = (np.log10([values[0], values[-1]]) for values in (found.rates, found.densities))
        extent = (low[0] + np.log10(8e-9), low[1] + np.log10(8e-9), high[0], high[1])
        pixels = np.array([to_rgb(colour(name)) for name in found.methods])[best]
        axes.imshow(pixels, origin="lower", aspect="auto", extent=extent, interpolation="nearest")
        _axes(axes, extent)
        for letter, i in zip(LETTERS, order, strict=False):
            _letters(axes, best == i, extent, letter)
        if own is not None and low[0] <= np.log10(own) <= low[1]:
            x = np.log10(own * 8e-9)
            axes.axvline(x, color="black", lw=1.0, ls="--")
            text = f"this machine: {own * 8e-9:.4g} Gbit/s"
            axes.text(x, extent[3], text, ha="center", va="bottom", fontsize=8)
        handles = [
            Patch(facecolor=colour(name), edgecolor="0.4", linewidth=0.4, label=f"{letter}  {name}")
            for letter, name in zip(LETTERS, names, strict=False)
        ]
        axes.legend(
            handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8
        )
        figure.text(0.12 / width, 1 - 0.08 / height, title, va="top", fontsize=10, linespacing=1.3)


def _refined(found: Priced) -> Floats:
    """Return log seconds on a finer grid, (rows, columns, methods), linear between the priced."""
    with np.errstate(divide="ignore"):
        values: Floats = np.log(found.seconds)
    for axis in (0, 1):
        count = values.shape[axis]
        at = np.linspace(0, count - 1, (count - 1) * FINE + 1)
        left = np.minimum(at.astype(int), count - 2)
        part = np.expand_dims(at - left, tuple(k for k in range(3) if k != axis))
        values = np.take(values, left, axis) * (1 - part) + np.take(values, left + 1, axis) * part
    return values


def _axes(axes: Axes, extent: tuple[float, float, float, float]) -> None:
    """Label the axes of logarithms with numbers."""
    for axis, low, high in ((axes.xaxis, *extent[:2]), (axes.yaxis, *extent[2:])):
        axis.set_ticks(range(int(np.ceil(low - 1e-9)), int(np.floor(high + 1e-9)) + 1))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{10.0**value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("bandwidth between nodes in Gbit/s")
    axes.set_ylabel("density of one rank's gradient")
    for edge in ("top", "right"):
        axes.spines[edge].set_visible(False)


def _letters(
    axes: Axes, mask: Bools, extent: tuple[float, float, float, float], letter: str
) -> None:
    """Write a letter on each island of a region, or beside a thin one, with a leader."""
    rows, columns = mask.shape
    for island in _islands(mask):
        if island.sum() < LEAST * mask.size:
            continue
        row, column, depth = _middle(island)
        x = extent[0] + (extent[1] - extent[0]) * (column + 0.5) / columns
        y = extent[2] + (extent[3] - extent[2]) * (row + 0.5) / rows
        if depth >= 12:
            size = 10 if depth >= 20 else 8
            axes.text(x, y, letter, ha="center", va="center", fontsize=size)
            continue
        side = -1 if column > columns / 2 else 1
        axes.annotate(
            letter,
            (x, y),
            (14 * side, -14 if row > rows / 2 else 14),
            textcoords="offset points",
            fontsize=8,
            ha="center",
            va="center",
            arrowprops={"arrowstyle": "-", "lw": 0.6, "shrinkA": 1, "shrinkB": 0},
        )


def _islands(mask: Bools) -> Iterator[Bools]:
    """Yield the connected parts of a region."""
    left = mask.copy()
    while left.any():
        island: Bools = np.zeros_like(left)
        island[np.unravel_index(int(left.argmax()), left.shape)] = True
        grown = 0
        while (size := int(island.sum())) > grown:
            grown = size
            for axis in (0, 1):  # to the ends of the runs that the part touches
                island = _runs(island, left, axis)
        yield island
        left &= ~island


def _runs(island: Bools, within: Bools, axis: int) -> Bools:
    """Extend a part of a region along one axis, to the ends of the runs of the region."""
    a, b = (island, within) if axis else (island.T, within.T)
    starts = b & ~np.pad(b, ((0, 0), (1, 0)))[:, :-1]
    number = np.cumsum(starts.ravel()).reshape(b.shape) * b
    touched: npt.NDArray[np.int64] = np.unique(number[a])
    found: Bools = np.isin(number, touched[touched > 0])
    return found if axis else found.T


def _middle(island: Bools) -> tuple[int, int, int]:
    """Return the cell farthest from the island's edge, and the distance in cells."""
    depth, core = 0, island
    while True:
        wide = np.pad(core, 1)
        inner = core & wide[2:, 1:-1] & wide[:-2, 1:-1] & wide[1:-1, 2:] & wide[1:-1, :-2]
        if not inner.any():
            rows, columns = np.nonzero(core)
            near = (rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2
            at = int(near.argmin())
            return int(rows[at]), int(columns[at]), depth
        core, depth = inner, depth + 1
