"""The figure of the convergence tables: accuracy or loss over sent bytes, one panel per net."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from commsched.lab.convergence.table import CaseResult, ConvergenceTable, families
from commsched.plot.picture import picture
from commsched.train.trials import Mean, mean

# Source: palette of Okabe & Ito, "Color Universal Design", 2008, and darker shades of it.
COLOURS = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#777777",
    "#7A3B00",
    "#5B2C6F",
    "#00503A",
    "#8A8A00",
    "#B00058",
    "#3B3BD6",
)
MARKERS = "os^Dv<>Pp*XhdH"
LABEL = 6.5  # points
LABEL_ROOM = 0.035  # of a panel's height: distance between neighbouring labels
MARK, LETTER = 0.011, 0.0128  # of a panel: half the width of a marker; width of a letter
Box = tuple[float, float, float, float]  # left, bottom, right, top, shares of the panel
ACROSS, LEGEND = 2, 1.6  # panels in a row; inches beside them
# Largest drawn drop in accuracy, and rise in loss (nats); a label states values beyond.
FAR, WORSE = 0.04, 0.45


def draw(tables: Mapping[str, ConvergenceTable], path: Path) -> None:
    """Draw at least one table, by name, to PNG or SVG; digits by accuracy, text by loss.

    Bars are 95 % intervals; an empty marker stands for a value beyond the panel. The dashed line
    and its band are the result of dense sums and its interval.
    """
    known = list(
        dict.fromkeys(family for table in tables.values() for family in families(table.cases))
    )
    columns, rows = min(len(tables), ACROSS), -(-len(tables) // ACROSS)
    spare = columns * rows > len(tables)  # the legend fits into an empty panel
    beside = 0.0 if spare else LEGEND
    width = beside + 6.2 * columns
    with picture(path, (width, 5.4 * rows)) as figure:
        panels = figure.subplots(rows, columns, squeeze=False).reshape(-1)
        for axes, (name, table) in zip(panels, tables.items(), strict=False):
            _panel(axes, table, known)
            axes.set_title(title_of(name, table), fontsize=9)
        for axes in panels[len(tables) :]:
            axes.set_axis_off()
        handles = [
            Line2D([], [], ls="", marker=_look(i)[1], color=_look(i)[0], label=family)
            for i, family in enumerate(known)
        ]
        figure.tight_layout(rect=(0, 0, 1 - beside / width, 1))
        if spare:
            panels[-1].legend(handles=handles, loc="upper left", frameon=False, fontsize=8)
        else:
            figure.legend(handles=handles, loc="center right", frameon=False, fontsize=8)


def title_of(name: str, table: ConvergenceTable) -> str:
    """Return the title of a table's panel."""
    return f"{name}: {table.net}, {table.ranks} ranks, {table.steps} steps"


def _look(place: int) -> tuple[str, str]:
    """Return colour and marker of a family."""
    return COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]


def _value(case: CaseResult, by_loss: bool) -> Mean | None:
    """Return the value to draw; None if trainings diverged."""
    if not by_loss:
        return case.accuracy
    return mean(case.losses) if len(case.losses) == len(case.trained.trials) else None


def _panel(axes: Axes, table: ConvergenceTable, known: Sequence[str]) -> None:
    by_loss = table.by_loss
    values = {case.name: _value(case, by_loss) for case in table.cases}
    worst = _worst(values.get("dense"), by_loss)
    drawn = [(case, value) for case in table.cases if (value := values[case.name]) is not None]
    for case, value in drawn:
        shown = np.clip(value.value, *worst)
        near = shown == value.value
        colour, marker = _look(known.index(case.family))
        axes.errorbar(
            case.sent_bytes / 1e3,
            shown,
            yerr=(value.half or 0.0) if near else None,
            mfc=colour if near else "white",
            color=colour,
            marker=marker,
            ms=6,
            lw=1.0,
            capsize=2,
        )
        if case.name == "dense":
            axes.axhline(value.value, color="0.5", lw=0.8, ls="--", zorder=0)
            half = value.half or 0.0
            axes.axhspan(value.value - half, value.value + half, color="0.94", zorder=-1)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.14, y=0.12)
    axes.set_xlabel("kB that a rank sends in a step")
    axes.set_ylabel("held-out loss, nats" if by_loss else "held-out examples guessed right")
    if not by_loss:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
    axes.grid(color="0.93", lw=0.6)
    axes.set_axisbelow(True)
    _label(axes, drawn, worst, ".3g" if by_loss else ".0%")


def _worst(dense: Mean | None, by_loss: bool) -> tuple[float, float]:
    """Return the lowest and highest value that is drawn inside the panel."""
    if dense is None:
        return -np.inf, np.inf
    return (-np.inf, dense.value + WORSE) if by_loss else (dense.value - FAR, np.inf)


def _label(
    axes: Axes, drawn: Sequence[tuple[CaseResult, Mean]], worst: tuple[float, float], form: str
) -> None:
    """Write each name as near to its point as the space in the panel allows."""
    axes.autoscale_view()  # the limits are needed below
    to_axes = axes.transData + axes.transAxes.inverted()
    rows = sorted(drawn, key=lambda row: -row[1].value)
    points = [
        to_axes.transform((case.sent_bytes / 1e3, np.clip(value.value, *worst)))
        for case, value in rows
    ]
    taken = [(x - MARK, y - MARK, x + MARK, y + MARK) for x, y in points]
    for (case, value), (x, y) in zip(rows, points, strict=True):
        shown = np.clip(value.value, *worst) == value.value
        text = case.name if shown else f"{case.name}: {value.value:{form}}"
        box = next((box for box in _places(x, y, len(text)) if _free(box, taken)), None)
        box = box or next(_places(x, y, len(text)))
        taken.append(box)
        middle = (box[1] + box[3]) / 2
        axes.annotate(
            text,
            (x, y),
            xytext=(box[2] if box[2] < x else box[0], middle),
            ha="right" if box[2] < x else "left",
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=LABEL,
            va="center",
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
            arrowprops={"arrowstyle": "-", "lw": 0.4, "color": "0.6"}
            if abs(y - middle) > 0.03
            else None,
        )


def _places(x: float, y: float, letters: int) -> Iterator[Box]:
    """Yield boxes of a label around a point, the nearest first, within the panel."""
    width = letters * LETTER
    for step in range(120):
        for sign in (-1, 1):
            middle = y + sign * step * LABEL_ROOM / 4
            for left in (x + 0.015, x - 0.015 - width):
                box = left, middle - LABEL_ROOM / 2, left + width, middle + LABEL_ROOM / 2
                if box[0] > 0.005 and box[2] < 0.995 and box[1] > 0.0 and box[3] < 1.0:
                    yield box
    yield x + 0.015, y - LABEL_ROOM / 2, x + 0.015 + width, y + LABEL_ROOM / 2


def _free(box: Box, taken: Sequence[Box]) -> bool:
    """Tell whether a box overlaps no other."""
    return not any(
        box[0] < right and left < box[2] and box[1] < top and bottom < box[3]
        for left, bottom, right, top in taken
    )
