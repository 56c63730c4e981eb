"""Pictures of a study's rows: lines over an axis, heat maps, and Pareto fronts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log, radians, sin
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from commsched.errors import CommschedError
from commsched.nearest_name import nearest
from commsched.plot import legend, study_rows
from commsched.plot.legend import INCH, LETTER
from commsched.plot.panel_notes import Note, write_notes
from commsched.plot.picture import picture
from commsched.plot.study_columns import (
    AXES,
    KNOWN,
    Row,
    break_evens,
    front,
    order_of,
    shown_of,
    text_of,
    there,
    ticks_apart,
    value_of,
)

LINES = ("planner", "allow", "method", "strategy")  # columns by which lines differ by default
NAMED = ("net", "machine")  # columns that are told even if the number of an axis tells them apart
FACETS = (*NAMED, *(name for name in AXES if name not in NAMED))
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
# Source: palette of Okabe & Ito, "Color Universal Design", 2008.
MARKERS = "osD^vPX"  # their number differs from that of colours, so looks repeat late
DASHES = ("-", "--", "-.", ":")
NEAR = 5e-3  # share of a value: lines that differ less look equal in a panel
FRONT = "nothing is better"  # name of the line of a Pareto front
SAME, ALMOST = " = ", " ≈ "  # between the names of equal lines, and of nearly equal lines


@dataclass(frozen=True, kw_only=True)
class StudyPicture:
    """The options of a study's picture."""

    x: str = "bandwidth"
    y: str = "step"
    lines: tuple[str, ...] = ()  # empty: columns that differ
    value: str = ""  # drawn as a heat map over x and y
    pareto: str = ""  # drawn against the step, or the time per batch if numbers of batches differ
    break_even: bool = False
    where: Mapping[str, str] = field(default_factory=dict)  # rows to draw
    prices: Mapping[str, float] = field(default_factory=dict)  # machine -> money per node and hour
    width: float = 7.0  # in
    height: float | None = None  # in; None: as the panels need
    font: float = 7.0  # pt
    title: str | None = None  # None: the value of a map; "": no title


def draw(rows: Sequence[Row], path: str | Path, wanted: StudyPicture) -> None:
    """Draw the rows that have a plan, one panel for each net and machine, as .png, .svg or .pdf."""
    names = [wanted.x, wanted.y, *wanted.lines, *filter(None, (wanted.value, wanted.pareto))]
    for name in (*names, *wanted.where):
        if name not in KNOWN:
            known = ", ".join(KNOWN)
            raise CommschedError(f"no column {name!r}; known: {known}{nearest(name, KNOWN)}")
    study_rows.check_axes([wanted.x, wanted.y] if wanted.value else [])
    if wanted.pareto:
        wanted = replace(wanted, x=wanted.pareto, y="step")
    numbers = [wanted.value or wanted.y, *([wanted.x] * (wanted.break_even or bool(wanted.pareto)))]
    for name in numbers:
        if not KNOWN[name].number:
            raise CommschedError(f"column {name!r} holds words, and numbers are drawn here")
    shown = [wanted.x, wanted.y, *filter(None, [wanted.value])]
    rows = study_rows.by_batch(study_rows.priced(rows, wanted.prices))
    where = study_rows.as_texts(wanted.where)
    study_rows.check_chosen(rows, where, wanted.where, shown)
    rows = [one for one in rows if all(there(one, name) for name in shown)]
    if wanted.pareto:
        x, y = study_rows.fair_axes(rows, where, wanted.x)
        wanted = replace(wanted, x=x, y=y)
    _Drawing(rows, replace(wanted, where=where)).draw(path)


class _Drawing:
    """The panels of a picture and their common settings."""

    def __init__(self, every: Sequence[Row], wanted: StudyPicture) -> None:
        every = sorted(every, key=lambda one: [order_of(one, name) for name in FACETS])
        rows = [one for one in every if study_rows.chosen(one, wanted.where)]
        self.rows, self.wanted, self.font = rows, wanted, wanted.font
        self.notes: dict[Axes, list[Note]] = {}
        self.axes = (wanted.x,) if not wanted.value else (wanted.x, wanted.y)
        free: tuple[str, ...] = wanted.lines or (() if wanted.value else LINES)
        if wanted.pareto == "money" and not wanted.lines:
            free = (*LINES, "machine", "nodes")
        self.lines = self._differing((), free)
        self.facets = self._differing(self.lines, FACETS)
        if len(self.facets) > 2:
            raise CommschedError(
                f"the rows differ in {', '.join(self.facets)}, too; choose some, as in --where"
                f" {self.facets[-1]}={text_of(rows[0], self.facets[-1])}"
            )
        if not wanted.pareto:
            names = *self.axes, *self.lines, *self.facets
            study_rows.check_apart(rows, names, wanted.value or wanted.y, NEAR)
        # Uses all rows of the table, so that a line keeps its colour in pictures of some rows.
        groups = self._alike(list(dict.fromkeys(self.label(one, self.lines) for one in every)))
        self.names = {group[0]: SAME.join(group) for group in groups}
        self.labels = list(self.names)
        self.place = {label: place for place, group in enumerate(groups) for label in group}

    def _differing(self, known: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
        """Return the columns that differ between rows of the same axes and `known` columns."""
        kept: list[str] = []
        for name in names:
            told = [other for other in (*self.axes, *known, *kept) if other in AXES]
            if name in NAMED:
                told = [other for other in told if not KNOWN[other].number]
            seen: dict[tuple[str, ...], set[str]] = {}
            for one in self.rows:
                key = tuple(text_of(one, other) for other in told)
                seen.setdefault(key, set()).add(text_of(one, name))
            if name not in told and any(len(values) > 1 for values in seen.values()):
                kept.append(name)
        return tuple(kept)

    def _alike(self, labels: Sequence[str]) -> list[list[str]]:
        """Group the labels of lines that are equal in all panels."""
        seen: dict[str, dict[tuple[Any, ...], Any]] = {}
        for one in self.rows:
            place = *(text_of(one, name) for name in self.facets), value_of(one, self.wanted.x)
            seen.setdefault(self.label(one, self.lines), {})[place] = value_of(one, self.wanted.y)
        return _grouped({label: seen.get(label, {}) for label in labels})

    def _distinct(self, names: Sequence[str]) -> list[str]:
        """Return the distinct combinations of some columns' texts, in the order of the table."""
        return list(dict.fromkeys(self.label(one, names) for one in self.rows))

    @staticmethod
    def label(row: Row, names: Sequence[str]) -> str:
        """Name a row by some columns."""
        texts = [shown_of(row, name) for name in names]
        return ", ".join(text for text in texts if text != "-") or "-" * bool(names)

    def draw(self, path: str | Path) -> None:
        """Draw all panels with one legend."""
        wanted = self.wanted
        down = self._distinct(self.facets[:1])
        across = self._distinct(self.facets[1:])
        if len(self.facets) == 1:
            down, across = across, down
        height = wanted.height or self._height(len(down), len(across))
        settings = {"font.size": self.font, "axes.linewidth": 0.6}
        foot = self._foot()
        with picture(path, (wanted.width, height), 200, settings) as whole:
            whole.set_layout_engine("constrained", w_pad=0.02, h_pad=0.03)
            ratios = height - foot, foot or 0.01
            (figure,), (below,) = whole.subfigures(2, 1, squeeze=False, height_ratios=ratios)
            x, y = not wanted.pareto, bool(wanted.value)
            grid = figure.subplots(len(down), len(across), squeeze=False, sharex=x, sharey=y)
            handles: dict[str, Any] = {}
            for i, of_row in enumerate(down):
                for j, of_column in enumerate(across):
                    ours = [one for one in self.rows if self._place(one) == (of_row, of_column)]
                    panel = grid[i][j]
                    handles |= self._panel(panel, ours)
                    panel.tick_params(labelsize=self.font - 1, length=2, pad=1.5)
                    if i == 0:
                        panel.set_title(of_column, fontsize=self.font, pad=3)
                    if j == 0:
                        lines = filter(None, (of_row, KNOWN[wanted.y].label))
                        panel.set_ylabel("\n".join(lines), fontsize=self.font)
            figure.supxlabel(KNOWN[wanted.x].label, fontsize=self.font)
            of_map = KNOWN[wanted.value].label if wanted.value else ""
            if title := of_map if wanted.title is None else wanted.title:
                figure.suptitle(title, fontsize=self.font + 1)
            if named := {label: handle for label, handle in handles.items() if label}:
                self._legend(below, named)
            if any(self.notes.values()):
                whole.draw_without_rendering()  # sets the positions of panels
                for panel, notes in self.notes.items():
                    write_notes(panel, notes, self.font - 1)

    def _place(self, row: Row) -> tuple[str, str]:
        texts = [self.label(row, [name]) for name in self.facets]
        return {0: ("", ""), 1: ("", *texts), 2: tuple(texts)}[len(texts)]  # type: ignore[return-value]

    def _height(self, down: int, across: int) -> float:
        each = min(self.wanted.width / across * 0.72, 3.2)
        longest = max(len(_shown(value_of(one, self.wanted.x))) for one in self.rows)
        turned = sin(radians(self._turn())) * longest * LETTER * self.font / INCH
        return max(each, 1.2) * down + 0.35 + turned + self._foot()

    def _foot(self) -> float:
        """Return the height of the legend, in."""
        names = list(filter(None, [*self.names.values(), FRONT if self.wanted.pareto else ""]))
        if self.wanted.value or not names:
            return 0.0
        return legend.height(names, self.wanted.width, self.font)

    def _legend(self, figure: SubFigure, handles: Mapping[str, Any]) -> None:
        names = [self.names.get(label, label) for label in handles]
        figure.legend(
            handles.values(),
            names,
            loc="center",
            ncols=legend.columns(names, self.wanted.width, self.font),
            frameon=False,
            fontsize=self.font,
            handlelength=2.2,
            columnspacing=1.2,
        )

    def _panel(self, panel: Axes, rows: Sequence[Row]) -> dict[str, Any]:
        for edge in ("top", "right"):
            panel.spines[edge].set_visible(bool(self.wanted.value))
        if not rows:  # the study has no such net on this machine
            panel.set_axis_off()
            return {}
        if self.wanted.value:
            self._map(panel, rows)
            return {}
        return self._front(panel, rows) if self.wanted.pareto else self._curves(panel, rows)

    def _look(self, label: str) -> dict[str, Any]:
        place = self.place[label]
        return {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": DASHES[place // len(COLOURS) % len(DASHES)],
            "markersize": self.font * 0.45,
            "linewidth": 1.1,
        }

    def _curves(self, panel: Axes, rows: Sequence[Row]) -> dict[str, Any]:
        """Draw y over x, with a line per combination of the line columns."""
        wanted, handles, lines = self.wanted, {}, {}
        ticks = self._ticks(panel, wanted.x)
        for label in self.labels:
            points = sorted(
                (ticks(value_of(one, wanted.x)), value_of(one, wanted.y))
                for one in rows
                if self.label(one, self.lines) == label
            )
            if points:
                lines[label] = dict(points)
                (handles[label],) = panel.plot(*zip(*points, strict=True), **self._look(label))
        equal = _grouped(lines)
        hidden = [
            (SAME if same in equal else ALMOST).join(same)
            for same in _grouped(lines, NEAR)
            if len(same) > 1
        ]
        self._from_zero(panel, rows)
        panel.grid(axis="y", linewidth=0.3, color="#CCCCCC")
        self.notes[panel] = [Note(text, "black") for text in hidden]
        if wanted.break_even:
            self.notes[panel] += self._break_even(panel, rows)
        return handles

    def _ticks(self, panel: Axes, name: str) -> Callable[[Any], float]:
        """Put ticks at the values of a column; return a function from value to position."""
        values = sorted({value_of(one, name) for one in self.rows})
        if KNOWN[name].number:
            wide = len(values) > 1 and values[0] > 0 and values[-1] / values[0] >= 4
            if wide:
                panel.set_xscale("log")
            few = ticks_apart(values, wide, self._room(panel))
            panel.xaxis.set_major_locator(FixedLocator(few))
            panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            panel.xaxis.set_minor_locator(NullLocator())
            return float
        self._name_places(panel, values)
        return lambda value: float(values.index(value))

    def _name_places(self, panel: Axes, values: Sequence[Any]) -> None:
        """Put the names of values under a panel."""
        turn = self._turn()
        turned: dict[str, Any] = {"rotation": turn, "rotation_mode": "anchor", "ha": "right"}
        turned |= {"va": "center"} if turn == 90.0 else {}
        names = [_shown(value) for value in values]
        panel.set_xticks(range(len(names)), names, **(turned if turn else {}))

    def _turn(self) -> float:
        """Return the angle in degrees by which names under a panel turn so as not to overlap."""
        if KNOWN[self.wanted.x].number and not self.wanted.value:
            return 0.0
        names = {_shown(value_of(one, self.wanted.x)) for one in self.rows}
        beside = 1.0 if self.wanted.value else 0.5  # in, for the names of the other axis
        place = max(0.0, self._wide() - beside) * INCH / len(names)
        if (max(map(len, names)) + 1) * LETTER * (self.font - 1) <= place:
            return 0.0
        return 45.0 if place >= 1.5 * self.font else 90.0

    def _room(self, panel: Axes) -> int:
        """Count the ticks that fit under a panel."""
        longest = max(len(text_of(one, self.wanted.x)) for one in self.rows)
        return max(2, int(self._wide() * INCH / (self.font * LETTER * (longest + 2))))

    def _wide(self) -> float:
        """Return the approximate width of a panel, in."""
        return self.wanted.width / len(self._distinct(self.facets[-1:]))

    def _break_even(self, panel: Axes, rows: Sequence[Row]) -> list[Note]:
        """Mark where allowed codecs begin or stop to save GAIN; return notes on these points."""
        codecs: dict[tuple[str, str], list[str]] = {}
        for row, x, below in break_evens(rows, self.wanted.x, self.lines):
            colour = self._look(self.label(row, self.lines))["color"]
            panel.axvline(x, color=colour, linewidth=0.8, linestyle=(0, (1, 1.5)))
            value = KNOWN[self.wanted.x].words.format(f"{x:.3g}")
            said = f"{'below' if below else 'above'} {value}", colour
            codecs.setdefault(said, []).append(row["allow"])
        return [
            Note(f"{SAME.join(names)} pays {where}", colour)
            for (where, colour), names in codecs.items()
        ]

    def _map(self, panel: Axes, rows: Sequence[Row]) -> None:
        """Draw a heat map of a value over x and y, with the values as text."""
        wanted = self.wanted
        columns = sorted({value_of(one, wanted.x) for one in self.rows})
        lines = sorted({value_of(one, wanted.y) for one in self.rows})
        grid = np.full((len(lines), len(columns)), np.nan)
        for one in rows:
            grid[lines.index(value_of(one, wanted.y)), columns.index(value_of(one, wanted.x))] = (
                value_of(one, wanted.value)
            )
        every = [value_of(one, wanted.value) for one in rows]
        low, high = log(max(min(every), 1e-12)), log(max(*every, 2e-12))
        shade = (np.log(np.maximum(grid, 1e-12)) - low) / max(high - low, 1e-9)
        panel.imshow(shade, cmap="cividis", vmin=0, vmax=1, aspect="auto", origin="lower")
        cell = (self.wanted.width - 1.0) / len(self._distinct(self.facets[-1:])) / len(columns)
        size = min(self.font - 1, cell * INCH / (4.6 * LETTER))
        for (i, j), value in np.ndenumerate(grid):
            if not np.isnan(value):
                ink = "white" if shade[i, j] < 0.5 else "black"
                text = f"{value:.3g}"
                panel.text(j, i, text, ha="center", va="center", color=ink, fontsize=size)
        self._name_places(panel, columns)
        panel.set_yticks(range(len(lines)), [_shown(value) for value in lines])

    def _front(self, panel: Axes, rows: Sequence[Row]) -> dict[str, Any]:
        """Draw the points of rows, and the line of the Pareto front."""
        x, y, handles = self.wanted.x, self.wanted.y, {}
        for label in self.labels:
            own = [one for one in rows if self.label(one, self.lines) == label]
            if own:
                look = {**self._look(label), "linestyle": "none"}
                (handles[label],) = panel.plot(
                    [value_of(one, x) for one in own], [value_of(one, y) for one in own], **look
                )
        best = front([(value_of(one, x), value_of(one, y)) for one in rows])
        if len(best) > 1:  # a line needs two
            across, up = zip(*best, strict=True)
            (handles[FRONT],) = panel.step(
                across, up, where="post", color="#555555", linewidth=0.8, zorder=0
            )
        self._from_zero(panel, rows)
        return handles

    def _from_zero(self, panel: Axes, rows: Sequence[Row]) -> None:
        """Begin the axis at 0, and leave room for markers above the largest value."""
        most = max((value_of(one, self.wanted.y) for one in rows), default=0)
        panel.set_ylim(0, 1.06 * most or None)


def _grouped(lines: Mapping[str, Mapping[Any, Any]], share: float = 0.0) -> list[list[str]]:
    """Group the keys of lines that differ by at most a share of each value, in order."""

    def near(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool:
        if not share or one.keys() != other.keys():
            return one == other
        return all(abs(value - other[x]) <= share * abs(value) for x, value in one.items())

    found: list[list[str]] = []
    for key, line in lines.items():
        same = next((group for group in found if near(lines[group[0]], line)), None)
        if same is None:
            found.append([key])
        else:
            same.append(key)
    return found


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float | int) else str(value) or "-"
