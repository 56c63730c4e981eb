"""Draw a predicted over a measured timeline on one time axis, as PNG or SVG."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.transforms import blended_transform_factory

from commsched.arrays import Floats
from commsched.errors import CommschedError
from commsched.plot import colours
from commsched.plot.picture import check_suffix, picture
from commsched.plot.view import View, drawn_ranks, ranks_to_draw, steps_to_draw, view
from commsched.timeline import measure
from commsched.timeline.compare import PredictedAndMeasured, check_comparable
from commsched.timeline.cycles import totals
from commsched.timeline.intervals import Intervals, intersection
from commsched.timeline.model import Timeline
from commsched.timeline.names import label

WIDTH, LEFT, RIGHT = 14.0, 2.1, 0.2  # inches: the figure, and its margins
LANE, TOP, BOTTOM = 0.19, 0.75, 1.0  # inches: one lane, and the margins
FONT = 6.5  # points, in bars
NOTHING = Intervals(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
MOST_LANES = 1000  # beyond twice as many matplotlib cannot make the picture
SIDE_GAP, RANK_GAP = 0.35, 0.9  # lanes


class DrawnLane(NamedTuple):
    """One stream of one rank of one side, at height `y` (its lower edge)."""

    rank: int
    side: View
    stream: int
    y: float


def draw(
    predicted: Timeline,
    measured: Timeline | None,
    path: str | Path,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
) -> None:
    """Draw one step, by default the measured one of median iteration time, to PNG or SVG.

    Which ranks are drawn: see `ranks_to_draw`.
    """
    check_suffix(path, ".png, .svg or .html")
    sides = [predicted] if measured is None else [predicted, measured]
    views = [view(t, s) for t, s in zip(sides, steps_to_draw(sides, step), strict=True)]
    chosen = ranks_to_draw(views[-1], ranks)
    title = _title(sides, views, chosen)
    lanes, depth = _lanes(views, list(chosen))
    if len(lanes) > MOST_LANES:
        raise CommschedError(
            f"one picture shows at most {MOST_LANES} streams, got {len(lanes)}; draw fewer ranks"
        )
    with picture(path, (WIDTH, TOP + BOTTOM + LANE * depth)) as figure:
        _draw_axes(figure, lanes, depth, max(max(v.length for v in views), 1e-9))
        _name_lanes(figure.axes[0], lanes, chosen)
        x, y = LEFT / WIDTH, 1 - 0.12 / figure.get_figheight()
        figure.text(x, y, title, va="top", fontsize=10, linespacing=1.4)
        _legend(figure, lanes)


def _title(sides: list[Timeline], views: list[View], chosen: dict[int, str]) -> str:
    """Say what is drawn, and how well the prediction holds."""
    t = sides[-1]
    known = (t.header.net, t.header.machine)
    what = [word for word in known if word is not None and word.isprintable()]
    ranks = drawn_ranks(t, chosen)
    steps = f"step {views[-1].step}"
    if views[0].step != views[-1].step:
        steps = f"step {views[0].step} ({sides[0].kind}) and {views[-1].step} ({t.kind})"
    head = ", ".join(s for s in (" on ".join(what), ranks, f"plan {t.plan_hash[:12]}", steps) if s)
    if len(sides) == 2:
        check_comparable(*sides)
    found = [totals(side) for side in sides]
    if not all(side.counted for side in found):
        return head
    iterations = [float(np.median(f.iteration)) for f in found]
    pairs = zip(iterations, sides, strict=True)
    said = ", ".join(f"{seconds * 1e3:.2f} ms {side.kind}" for seconds, side in pairs)
    error = PredictedAndMeasured(*iterations).error if len(sides) == 2 else None
    if error is not None:
        said += f", error {error:+.1%}"
    bare = " and ".join(f"{np.median(f.exposed) * 1e3:.2f}" for f in found)
    taken = " and ".join(dict.fromkeys(side.statistic for side in found))
    return f"{head}\niteration {said}; exposed communication {bare} ms ({taken})"


def _draw_axes(figure: Figure, lanes: list[DrawnLane], depth: float, longest: float) -> None:
    """Draw all lanes over a time axis of `longest` seconds."""
    height = figure.get_figheight()
    inside = (WIDTH - LEFT - RIGHT) / WIDTH
    axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, inside, LANE * depth / height))
    axes.set_xlim(0, longest * 1e3)
    axes.set_ylim(-depth, 0)
    points = (WIDTH - LEFT - RIGHT) * 72 / longest  # per second
    for lane in lanes:
        _draw_lane(axes, lane, points)
    axes.set_yticks([])
    axes.set_xlabel("ms since the step's first start", fontsize=9)
    axes.tick_params(labelsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for edge in ("top", "left", "right"):
        axes.spines[edge].set_visible(False)


def _lanes(views: list[View], ranks: list[int]) -> tuple[list[DrawnLane], float]:
    """Stack rank by rank, in each the predicted over the measured streams that have spans."""
    lanes: list[DrawnLane] = []
    y = 0.0
    order = list(dict.fromkeys(stream for v in views for stream in v.spans.streams))
    for at, rank in enumerate(ranks):
        y -= RANK_GAP if at else 0.1
        drawn = [v for v in views if (v.spans.rank == rank).any()]
        for number, side in enumerate(drawn):
            y -= SIDE_GAP if number else 0.0
            used = {side.spans.streams[i] for i in side.spans.stream[side.spans.rank == rank]}
            for stream in (s for s in order if s in used):
                y -= 1
                lanes.append(DrawnLane(rank, side, side.spans.streams.index(stream), y))
    return lanes, 0.1 - y


def _draw_lane(axes: Axes, lane: DrawnLane, points: float) -> None:
    t = lane.side.spans
    t = t.select((t.rank == lane.rank) & (t.stream == lane.stream))
    stream = t.streams[lane.stream]
    looks = [colours.look(t.names[i], stream) for i in t.name]
    alpha = np.where(t.step == lane.side.step, 1.0, 0.4).tolist()  # other steps are paler
    axes.axhspan(lane.y + 0.06, lane.y + 0.94, color="#f3f3f3", linewidth=0, zorder=0.5)
    wide = (t.end - t.start) * points > 2  # a white edge would swallow a narrow bar
    bars = PolyCollection(
        list(_boxes(t.start, t.end, lane.y)),
        facecolors=[to_rgba(k.fill, a) for k, a in zip(looks, alpha, strict=True)],
        edgecolors=["white" if w else "none" for w in wide],
        linewidths=0.4,
        zorder=2,
    )
    axes.add_collection(bars, autolim=False)
    exposed = NOTHING
    if measure.is_communication(stream):
        waits = t.waited > 0
        _overlay(axes, t.start[waits], (t.start + t.waited)[waits], lane.y, "white", 0.65)
        exposed = _draw_exposed(axes, lane, t)
    for at, text, kind in _labels(t, looks, points):
        label = axes.text(at * 1e3, lane.y + 0.47, text, color=kind.text, fontsize=FONT)
        label.set(ha="center", va="center", zorder=5)
        half = _width(text) / points / 2
        if ((exposed.start < at + half) & (exposed.end > at - half)).any():
            label.set_bbox({"facecolor": kind.fill, "linewidth": 0, "pad": 0.4})  # not on a hatch


def _boxes(start: Floats, end: Floats, y: float) -> Floats:
    """Return (n, 4, 2) corners: ms, lanes."""
    low, high = np.full(len(start), y + 0.06), np.full(len(start), y + 0.94)
    a, b = start * 1e3, end * 1e3
    corners = [np.stack(c, axis=1) for c in ((a, low), (b, low), (b, high), (a, high))]
    return np.stack(corners, axis=1)


def _overlay(axes: Axes, start: Floats, end: Floats, y: float, colour: str, alpha: float) -> None:
    boxes = PolyCollection(
        list(_boxes(start, end, y)), facecolors=colour, alpha=alpha, linewidths=0, zorder=3
    )
    axes.add_collection(boxes, autolim=False)


def _draw_exposed(axes: Axes, lane: DrawnLane, t: Timeline) -> Intervals:
    """Mark and return when this stream is busy and compute is idle."""
    of_rank = lane.side.exposed.group == lane.rank
    exposed = Intervals(*(column[of_rank] for column in lane.side.exposed))
    found = intersection(exposed, measure.spans_of(t, np.ones(len(t), bool)))
    boxes = PolyCollection(
        list(_boxes(found.start, found.end, lane.y)),
        facecolors="none",
        edgecolors=colours.EXPOSED,
        hatch="/////",
        linewidths=0.9,
        zorder=4,
    )
    axes.add_collection(boxes, autolim=False)
    return found


def _labels(
    t: Timeline, looks: list[colours.Look], points: float
) -> Iterator[tuple[float, str, colours.Look]]:
    """Yield (centre s, text, look) for the bars in which their name, or its short form, fits."""
    taken = -1.0  # s; where spans overlap, only the first is named
    for i in np.argsort(t.start, kind="stable").tolist():
        start, end = float(t.start[i]), float(t.end[i])
        room = (end - start) * points - 3
        if start < taken or room < FONT / 2:
            continue
        name = t.names[t.name[i]]
        text = next((s for s in (name, label(name).short) if _width(s) <= room), None)
        if text is not None:
            taken = end
            yield (start + end) / 2, text, looks[i]


@cache
def _width(text: str) -> float:
    """Return the width of a label in points."""
    font = FontProperties(size=FONT)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])


def _name_lanes(axes: Axes, lanes: list[DrawnLane], chosen: dict[int, str]) -> None:
    """Write rank, side and stream left of the lanes, in three columns."""
    where = blended_transform_factory(axes.transAxes, axes.transData)

    def write(inches: float, y: float, text: str, size: float, weight: str = "normal") -> None:
        x = -inches / (WIDTH - LEFT - RIGHT)
        label = axes.text(x, y, text, transform=where, fontsize=size, weight=weight)
        label.set(va="center", ha="right")

    for lane in lanes:
        write(0.06, lane.y + 0.5, lane.side.spans.streams[lane.stream], 6.5)
    for rank, role in chosen.items():
        of_rank = [lane for lane in lanes if lane.rank == rank]
        for kind in dict.fromkeys(lane.side.kind for lane in of_rank):
            heights = [lane.y for lane in of_rank if lane.side.kind == kind]
            write(0.72, (min(heights) + max(heights) + 1) / 2, kind, 7.5)
        middle = (of_rank[0].y + of_rank[-1].y + 1) / 2
        write(1.4, middle, f"rank {rank}" + (f"\n({role})" if role else ""), 8.5, "bold")


def _legend(figure: Figure, lanes: list[DrawnLane]) -> None:
    """Explain the kinds of work that are there, and the marks."""
    used = set()
    for lane in lanes:
        t = lane.side.spans
        of_lane = np.unique(t.name[(t.rank == lane.rank) & (t.stream == lane.stream)])
        used |= {colours.look(t.names[i], t.streams[lane.stream]) for i in of_lane}
    marks = [Patch(facecolor=k.fill, label=k.legend) for k in colours.LOOKS if k in used]
    fill = colours.EXCHANGE.fill
    if any((lane.side.spans.waited > 0).any() for lane in lanes):
        marks.append(Patch(facecolor=fill, alpha=0.35, label="waiting for a peer"))
    if any(len(lane.side.exposed.group) for lane in lanes):
        edge, label = colours.EXPOSED, "exposed: compute is idle"
        marks.append(Patch(facecolor=fill, edgecolor=edge, hatch="/////", label=label))
    figure.legend(
        handles=marks,
        loc="lower left",
        bbox_to_anchor=(LEFT / WIDTH - 0.005, 0),
        ncols=len(marks),
        frameon=False,
        fontsize=8,
    )
