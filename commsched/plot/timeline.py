"""The picture of one or two timelines on one time axis, as PNG, SVG or PDF."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import blended_transform_factory

from commsched.arrays import Floats
from commsched.errors import CommschedError
from commsched.plot import colours
from commsched.plot.picture import boxes, check_suffix, picture
from commsched.plot.style import PLAIN, Style
from commsched.plot.title import title_of, wrapped
from commsched.plot.view import (
    View,
    check_same_net,
    named,
    ranks_to_draw,
    same_plan,
    steps_to_draw,
    view,
)
from commsched.timeline import measure
from commsched.timeline.intervals import Intervals, intersection
from commsched.timeline.model import Timeline
from commsched.timeline.names import label
from commsched.units import nbytes

NOTHING = Intervals(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
MOST_LANES = 1000  # matplotlib cannot make a picture of more than twice as many
GROUP_GAP, HEAD = 0.3, 0.9  # lanes
PALER, BACK = 0.4, "#f3f3f3"
BAR, HEADING, AXIS, LEGEND, TITLE = 0.93, 1.1, 1.1, 1.0, 1.25  # sizes of text, in fonts
SEEN = 1e-3  # of a step: shorter waiting is not in the legend
SPACING = {"columnspacing": 1.0, "handlelength": 1.6, "handletextpad": 0.5, "labelspacing": 0.4}
LANES, MARKS = 5, 6  # drawing order of text


class DrawnLane(NamedTuple):
    """One stream of one rank of one side, at height `y` (its lower edge)."""

    rank: int
    side: View
    name: str  # of the side
    stream: int
    y: float


class Heading(NamedTuple):
    """The text above the lanes of one rank of one side."""

    text: str
    y: float  # middle
    side: View


class Layout(NamedTuple):
    """The lanes, their headings, and the height of all in lanes."""

    lanes: list[DrawnLane]
    heads: list[Heading]
    depth: float


def draw(
    sides: Sequence[Timeline],
    path: str | Path,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
    style: Style = PLAIN,
) -> None:
    """Draw one step, by default that of median iteration time of the last side.

    Which ranks are drawn: see `ranks_to_draw`. Sides of one plan alternate rank by rank; those of
    two plans follow each other.
    """
    check_suffix(path, ".png, .svg, .pdf or .html")
    check_same_net(sides)
    views = [view(t, s) for t, s in zip(sides, steps_to_draw(sides, step), strict=True)]
    chosen = [ranks_to_draw(v, ranks) for v in views]
    if same_plan(sides):
        chosen = [chosen[-1]] * len(views)
    names = named(sides, style.names)
    layout = _layout(views, names, chosen, same_plan(sides), style)
    if not 0 < len(layout.lanes) <= MOST_LANES:
        raise CommschedError(
            f"one picture shows 1 to {MOST_LANES} streams, got {len(layout.lanes)}; draw other"
            " --ranks or --lanes"
        )
    text = title_of(sides, views, names, chosen) if style.title is None else style.title
    _written(layout, text, path, style)


def _written(layout: Layout, title: str, path: str | Path, style: Style) -> None:
    """Draw a layout to a file."""
    fonts = style.font / 72  # in
    left = (max(_width(s, BAR * style.font) for s in _streams(layout)) / 72) + fonts
    marks = _marks(layout)
    columns = _columns(marks, style)
    rows = -(-len(marks) // columns)
    room = (style.width - 2 * fonts) * 72
    lines = wrapped(title, lambda text: _width(text, TITLE * style.font) <= room)
    top = fonts * (1 + 1.4 * TITLE * len(lines))
    bottom = fonts * (4.4 + 1.45 * LEGEND * rows)
    lane = style.lane
    if style.height is not None:
        lane = (style.height - top - bottom) / layout.depth
        if lane * 72 < 2:
            least = top + bottom + layout.depth / 36
            raise CommschedError(
                f"{len(layout.lanes)} lanes need a height of {least:.1f}in; draw fewer --ranks or"
                " --lanes, or with a smaller --font-size"
            )
    height = top + bottom + lane * layout.depth
    dpi = 150 if style.width > 7 else 300
    with picture(path, (style.width, height), dpi) as figure:
        place = (left / style.width, bottom / height)
        size = ((style.width - left - fonts) / style.width, lane * layout.depth / height)
        axes = figure.add_axes((*place, *size))
        _draw_axes(axes, layout, style, lane)
        x, y = fonts / style.width, 1 - 0.6 * fonts / height
        text = figure.text(x, y, "\n".join(lines), va="top", fontsize=TITLE * style.font)
        text.set_linespacing(1.3)
        figure.legend(
            handles=marks,
            loc="lower left",
            bbox_to_anchor=(0.2 * fonts / style.width, 0),
            ncols=columns,
            frameon=False,
            fontsize=LEGEND * style.font,
            borderpad=0.2,
            **SPACING,
        )


def _columns(marks: Sequence[Patch | Line2D], style: Style) -> int:
    """Return the number of columns in which the marks of a legend fit."""
    font = LEGEND * style.font
    widths = [_width(mark.get_label(), font) + 3.1 * font for mark in marks]
    room = style.width * 72 - style.font
    if sum(widths) <= room:
        return len(marks)
    rows = -(-len(marks) // max(1, int(room / max(widths))))
    return -(-len(marks) // rows)


def _streams(layout: Layout) -> list[str]:
    return [lane.side.spans.streams[lane.stream] for lane in layout.lanes] or [""]


def _layout(
    views: Sequence[View],
    names: Sequence[str],
    chosen: Sequence[dict[int, str]],
    alternate: bool,
    style: Style,
) -> Layout:
    """Stack ranks and sides, in each the streams that have spans."""
    lanes: list[DrawnLane] = []
    heads: list[Heading] = []
    y = 0.0
    order = list(dict.fromkeys(stream for v in views for stream in v.spans.streams))
    known = {stream for v in views for stream in _used(v)}
    if missing := [lane for lane in style.lanes if lane not in known]:
        raise CommschedError(
            f"no lane {missing[0]!r} in the timeline; it has"
            f" {', '.join(stream for stream in order if stream in known)}"
        )
    for rank, number in _in_order(chosen, alternate):
        side, role = views[number], chosen[number][rank]
        used = _used(side, rank)
        drawn = [s for s in order if s in used and (not style.lanes or s in style.lanes)]
        if not drawn:
            continue
        about = [names[number]] * (len(views) > 1) + [f"rank {rank}"] + [role] * bool(role)
        y -= GROUP_GAP if heads else 0.0
        heads.append(Heading(", ".join(about), y - HEAD / 2, side))
        y -= HEAD
        for stream in drawn:
            y -= 1
            at = side.spans.streams.index(stream)
            lanes.append(DrawnLane(rank, side, names[number], at, y))
    return Layout(lanes, heads, 0.1 - y)


def _used(side: View, rank: int | None = None) -> set[str]:
    t = side.spans
    return {t.streams[i] for i in np.unique(t.stream if rank is None else t.stream[t.rank == rank])}


def _in_order(chosen: Sequence[dict[int, str]], alternate: bool) -> list[tuple[int, int]]:
    """Return (rank, side) from top to bottom."""
    if alternate:
        return [(rank, side) for rank in chosen[0] for side in range(len(chosen))]
    return [(rank, side) for side, ranks in enumerate(chosen) for rank in ranks]


def _draw_axes(axes: Axes, layout: Layout, style: Style, lane: float) -> None:
    """Draw all lanes over a time axis as long as the longest side."""
    longest = max(*(h.side.length for h in layout.heads), 1e-9)
    axes.set_xlim(0, longest * 1e3)
    axes.set_ylim(-layout.depth, 0)
    width = axes.get_position().width * style.width
    points = width * 72 / longest  # per second
    legible = lane * 72 > 1.1 * BAR * style.font
    for each in layout.lanes:
        _draw_lane(axes, each, points, BAR * style.font if legible else 0.0)
    _draw_steps(axes, layout, longest, style.font)
    _name_lanes(axes, layout, style)
    axes.set_yticks([])
    axes.xaxis.set_major_locator(
        MaxNLocator(max(3, int(width * 8 / style.font)), steps=[1, 2, 5, 10])
    )
    axes.set_xlabel(
        "ms since the first rank began the step", fontsize=AXIS * style.font, labelpad=2
    )
    axes.tick_params(labelsize=AXIS * style.font, length=2.5, pad=2)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for edge in ("top", "left", "right"):
        axes.spines[edge].set_visible(False)


def _draw_lane(axes: Axes, lane: DrawnLane, points: float, font: float) -> None:
    """Draw the bars of a lane; `font` 0: without text."""
    t = lane.side.spans
    t = t.select((t.rank == lane.rank) & (t.stream == lane.stream))
    stream = t.streams[lane.stream]
    looks = [colours.look(t.names[i], stream) for i in t.name]
    alpha = np.where(t.step == lane.side.step, 1.0, PALER).tolist()
    whole = np.zeros(1), np.array([lane.side.length])
    _draw_boxes(axes, *whole, lane.y, facecolors=BACK, linewidths=0, zorder=0.5)
    wide = (t.end - t.start) * points > 2  # a white edge would swallow a narrow bar
    fills = [to_rgba(k.fill, a) for k, a in zip(looks, alpha, strict=True)]
    edges = {"edgecolors": ["white" if w else "none" for w in wide], "linewidths": 0.4}
    _draw_boxes(axes, t.start, t.end, lane.y, facecolors=fills, zorder=2, **edges)
    exposed = NOTHING
    if measure.is_communication(stream):
        waits = t.waited > 0
        start, end = t.start[waits], (t.start + t.waited)[waits]
        paler = {"facecolors": "white", "alpha": 0.65}
        _draw_boxes(axes, start, end, lane.y, **paler, linewidths=0, zorder=3)
        exposed = _draw_exposed(axes, lane, t)
    for i, at, text in _labels(t, points, font) if font else ():
        label = axes.text(at * 1e3, lane.y + 0.47, text, fontsize=font)
        label.set_color(looks[i].text if alpha[i] == 1 else "black")
        label.set(ha="center", va="center", zorder=LANES)
        half = _width(text, font) / points / 2
        if ((exposed.start < at + half) & (exposed.end > at - half)).any():
            fill = over(looks[i].fill, alpha[i], BACK)
            label.set_bbox({"facecolor": fill, "linewidth": 0, "pad": 0.4})  # not on a hatch


def over(fill: str, alpha: float, back: str) -> str:
    """Return the colour of a transparent fill over its background."""
    front, behind = np.array(to_rgb(fill)), np.array(to_rgb(back))
    red, green, blue = (alpha * front + (1 - alpha) * behind).tolist()
    return to_hex((red, green, blue))


def _draw_boxes(axes: Axes, start: Floats, end: Floats, y: float, **look: Any) -> None:
    """Draw boxes in the lane at height `y` from `start` to `end` s."""
    low, high = np.full(len(start), y + 0.06), np.full(len(start), y + 0.94)
    a, b = start * 1e3, end * 1e3
    corners = [np.stack(c, axis=1) for c in ((a, low), (b, low), (b, high), (a, high))]
    boxes = PolyCollection(list(np.stack(corners, axis=1)), **look)
    axes.add_collection(boxes, autolim=False)


def _draw_exposed(axes: Axes, lane: DrawnLane, t: Timeline) -> Intervals:
    """Mark and return the times at which this stream is busy and compute is idle."""
    of_rank = lane.side.exposed.group == lane.rank
    exposed = Intervals(*(column[of_rank] for column in lane.side.exposed))
    found = intersection(exposed, measure.spans_of(t, np.ones(len(t), bool)))
    look = {"facecolors": "none", "edgecolors": colours.EXPOSED, "hatch": "/////"}
    _draw_boxes(axes, found.start, found.end, lane.y, **look, linewidths=0.9, zorder=4)
    return found


def _labels(t: Timeline, points: float, font: float) -> Iterator[tuple[int, float, str]]:
    """Yield (span, centre s, text) for the bars in which the name, or a short form, fits."""
    taken = -1.0  # s; of overlapping spans only the first is named
    for i in np.argsort(t.start, kind="stable").tolist():
        start, end = float(t.start[i]), float(t.end[i])
        room = (end - start) * points - 3
        if start < taken or room < font / 2:
            continue
        forms = _forms(t, t.names[t.name[i]], float(t.nbytes[i]))
        text = next((s for s in forms if _width(s, font) <= room), None)
        if text is not None:
            taken = end
            yield i, (start + end) / 2, text


def _forms(t: Timeline, name: str, sent: float) -> Iterator[str]:
    """Yield the labels of an operation, the longest first: with method and bytes, then without."""
    short = label(name).short
    note = t.header.launches.get(name.partition("/")[0])
    if note is not None and sent:
        yield f"{short}: {note.method}, {nbytes(sent)}"
        yield f"{short}: {note.method}"
        yield f"{short}: {nbytes(sent)}"
    yield name
    yield short


@cache
def _width(text: str, font: float) -> float:
    """Return the width of a text in points."""
    size = FontProperties(size=font)
    with boxes():
        return float(text_to_path.get_text_width_height_descent(text, size, ismath=False)[0])


def _draw_steps(axes: Axes, layout: Layout, longest: float, font: float) -> None:
    """Mark where each rank begins another step, and where the shorter side ends."""
    for key, group in groupby(layout.lanes, key=lambda lane: (id(lane.side), lane.rank)):
        lanes = list(group)
        side, low, high = lanes[0].side, lanes[-1].y, lanes[0].y + 1
        moments = [*side.begun.get(key[1], ()), *([side.length] * (side.length < 0.99 * longest))]
        at = np.array(moments) * 1e3
        axes.vlines(at, low, high, colors="black", linewidth=0.9, linestyle="dashed", zorder=MARKS)
    for head in {id(head.side): head for head in reversed(layout.heads)}.values():
        side = head.side
        if np.isfinite(side.iteration):  # written once, above the side's first rank
            text = f" step {side.iteration * 1e3:.2f} ms"
            where = "left" if side.length < 0.7 * longest else "right"
            end = axes.text(side.length * 1e3, head.y, text, fontsize=HEADING * font, ha=where)
            end.set(va="center", zorder=MARKS)


def _name_lanes(axes: Axes, layout: Layout, style: Style) -> None:
    """Write streams left of the lanes, and rank and side above them."""
    where = blended_transform_factory(axes.transAxes, axes.transData)
    for lane in layout.lanes:
        name = lane.side.spans.streams[lane.stream]
        label = axes.annotate(
            name, (0, lane.y + 0.47), (-4, 0), xycoords=where, textcoords="offset points"
        )
        label.set_fontsize(BAR * style.font)
        label.set(va="center", ha="right")
    for head in layout.heads:
        text = axes.text(0, head.y, head.text, transform=where, fontsize=HEADING * style.font)
        text.set(va="center", weight="bold", zorder=MARKS)


def _marks(layout: Layout) -> list[Patch | Line2D]:
    """Return legend entries for the present kinds of work, and for the marks."""
    used, other, begun, waits = set(), False, False, False
    for lane in layout.lanes:
        t = lane.side.spans
        mine = (t.rank == lane.rank) & (t.stream == lane.stream)
        used |= {colours.look(t.names[i], t.streams[lane.stream]) for i in np.unique(t.name[mine])}
        other = other or bool((t.step[mine] != lane.side.step).any())
        begun = begun or bool(lane.side.begun.get(lane.rank))
        waits = waits or bool((t.waited[mine] > SEEN * lane.side.length).any())
    marks: list[Patch | Line2D] = []
    marks += [Patch(facecolor=k.fill, label=k.legend) for k in colours.LOOKS if k in used]
    if other:
        pale = to_rgba(colours.FORWARD.fill, PALER)
        marks.append(Patch(facecolor=pale, label="paler: another step"))
    if begun or len({h.side.length for h in layout.heads}) > 1:
        marks.append(Line2D([], [], color="black", lw=0.9, ls="dashed", label="next step begins"))
    fill = colours.EXCHANGE.fill
    if waits:
        marks.append(Patch(facecolor=fill, alpha=0.35, label="waiting for a peer"))
    if any(len(lane.side.exposed.group) for lane in layout.lanes):
        edge, text = colours.EXPOSED, "exposed: compute is idle"
        marks.append(Patch(facecolor=fill, edgecolor=edge, hatch="/////", label=text))
    return marks
