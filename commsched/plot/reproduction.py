"""The figure of published against predicted numbers: a panel per group, a line per number."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from commsched.plot.picture import picture

PUBLISHED, PREDICTED, MISSED = "black", "#0072B2", "#D55E00"  # of Okabe & Ito
COLUMN, LABELS, ERRORS = 6.6, 2.6, 1.0  # inches: a column of panels, its margins
LETTER = 0.055  # inches of a letter of a label
ROW, HEAD, FOOT = 0.2, 0.32, 0.42  # inches: a line, above and below a panel
TITLE, LEGEND = 0.15, 0.35  # inches: a line of the title, the legend below
FEW = 12  # most lines in a single column
SPREAD = 20.0  # largest over least number, from which an axis is logarithmic


class DrawnNumber(Protocol):
    """A number of a paper."""

    @property
    def group(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def published(self) -> float | None: ...
    @property
    def wanted(self) -> float | None: ...
    @property
    def predicted(self) -> float | None: ...
    @property
    def error(self) -> float | None: ...
    @property
    def met(self) -> bool: ...


class DrawnReproduction(Protocol):
    """All numbers of a paper."""

    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def rows(self) -> Sequence[DrawnNumber]: ...


def draw(found: DrawnReproduction, path: Path) -> None:
    """Draw all groups to PNG or SVG."""
    groups: dict[str, list[DrawnNumber]] = {}
    for row in found.rows:
        groups.setdefault(row.group, []).append(row)
    columns = _columns(list(groups.values()))
    labels = max(LABELS, 0.2 + LETTER * max(len(row.what) for row in found.rows))
    column = COLUMN - LABELS + labels
    width = column * len(columns)
    title = wrap(f"{found.name}: {found.source}", int(15.5 * width))
    above = TITLE * len(title) + LEGEND
    height = above + max(map(_height, columns))
    with picture(path, (width, height), dpi=130, settings={"font.size": 7.5}) as figure:
        for number, panels in enumerate(columns):
            top = height - above
            for rows in panels:
                left, inner = number * column + labels, column - labels - ERRORS
                bottom = top - HEAD - ROW * len(rows)
                box = (left / width, bottom / height, inner / width, ROW * len(rows) / height)
                _panel(figure.add_axes(box), rows)
                top = bottom - FOOT
        figure.text(0.1 / width, 1 - 0.08 / height, "\n".join(title), va="top", fontsize=8)
        handles = _legend(all(row.met for row in found.rows))
        legend = figure.legend(handles=handles, loc="upper left", ncols=4, frameon=False)
        legend.set_bbox_to_anchor((0.0, 1 - (TITLE * len(title) + 0.1) / height))


def _columns(panels: list[list[DrawnNumber]]) -> list[list[list[DrawnNumber]]]:
    """Return one column of panels, or two of heights as equal as the order allows."""
    if sum(map(len, panels)) <= FEW or len(panels) == 1:
        return [panels]
    cuts = range(1, len(panels))
    cut = min(cuts, key=lambda i: max(_height(panels[:i]), _height(panels[i:])))
    return [panels[:cut], panels[cut:]]


def _height(panels: Sequence[Sequence[DrawnNumber]]) -> float:
    """Return the height in inches of panels below each other."""
    return sum(HEAD + ROW * len(rows) + FOOT for rows in panels)


def _legend(met: bool) -> list[Line2D]:
    """Explain the dots; the last kind appears only if a bar is missed."""
    found = [
        Line2D([], [], ls="", marker="o", mfc="white", color=PUBLISHED, ms=5, label="published"),
        Line2D(
            [], [], ls="", marker="s", mfc="white", color=PUBLISHED, ms=5, label="derived by us"
        ),
        Line2D([], [], ls="", marker="o", color=PREDICTED, ms=4, label="predicted, with its error"),
        Line2D([], [], ls="", marker="o", color=MISSED, ms=4, label="predicted, beyond its bar"),
    ]
    return found[:3] if met else found


def _panel(axes: Axes, rows: Sequence[DrawnNumber]) -> None:
    """Draw one line per number, the first on top."""
    for place, row in enumerate(rows):
        colour = PREDICTED if row.met else MISSED
        if row.wanted is not None and row.predicted is not None:
            axes.plot([row.wanted, row.predicted], [place] * 2, color="0.6", lw=1, zorder=1)
        if row.wanted is not None:
            kind = "o" if row.published is not None else "s"
            (dot,) = axes.plot(row.wanted, place, kind, clip_on=False, ms=6, zorder=2)
            dot.set(markerfacecolor="white", markeredgecolor=PUBLISHED)
        if row.predicted is not None:
            axes.plot(row.predicted, place, "o", clip_on=False, color=colour, ms=3.5, zorder=3)
        text = "" if row.error is None else f"{round(row.error, 3) + 0.0:+.1%}"  # never -0.0 %
        if row.wanted is None:
            text = "ours only" if row.predicted is not None else "not available"
        axes.annotate(
            text or "published only",
            (1.02, place),
            xycoords=("axes fraction", "data"),
            va="center",
            color=colour if row.predicted is not None else "0.5",
            annotation_clip=False,
        )
    axes.set_yticks(range(len(rows)), [row.what for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    unit = rows[0].unit
    axes.set_title(rows[0].group + (f", {unit}" if unit else ""), loc="left", fontsize=8, pad=4)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color="0.92", lw=0.6)
    axes.grid(axis="y", color="0.96", lw=0.6)
    axes.set_axisbelow(True)
    _scale(axes, [x for row in rows for x in (row.wanted, row.predicted) if x is not None])


def _scale(axes: Axes, numbers: Sequence[float]) -> None:
    """Set a linear axis from 0, or a logarithmic one if numbers differ much."""
    if not numbers:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        return
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low > SPREAD:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.5, high * 1.5)
        wide = high / low > 300
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 3)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(min(0.0, low), 1.08 * high or 1.0)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
