"""The HTML page of a timeline, or of two timelines of one net, to zoom and search."""

from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from secrets import token_hex
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from commsched import files
from commsched.arrays import Floats, Ints
from commsched.plot import colours
from commsched.plot.view import (
    check_same_net,
    median_step,
    named,
    ranks_to_draw,
    same_plan,
    steps_to_draw,
    view,
)
from commsched.timeline import measure
from commsched.timeline.cycles import totals
from commsched.timeline.intervals import Intervals, difference, intervals
from commsched.timeline.model import Timeline
from commsched.timeline.names import label
from commsched.timeline.step_paths import step_paths
from commsched.timeline.totals import median

SCRIPTS = (
    "data.js",
    "draw.js",
    "operations.js",
    "panels.js",
    "page.js",
)  # in this order, as one script
MOST_PATHS = 40  # steps around the opening one whose critical path is in the page
CHUNK = 2**16  # numbers that are Python objects at the same time


def draw(
    sides: Sequence[Timeline],
    path: str | Path,
    step: int | None = None,
    ranks: Sequence[int] | None = None,
    names: Sequence[str] = (),
) -> None:
    """Write a page of all steps that opens at `step`, by default the measured step of median time.

    The page needs no other file and no network. Which ranks are unfolded: see `ranks_to_draw`.
    """
    before, after = _template()
    columns: list[npt.NDArray[Any]] = []
    mark = token_hex(8)  # placeholder of a column, which is written in chunks

    def marked(column: npt.NDArray[Any]) -> str:
        columns.append(column)
        return mark

    # in a script element only `<` can end the data; in JSON `<` occurs only in strings
    content = msgspec.json.encode(page_data(sides, step, ranks, names), enc_hook=marked)
    first, *others = content.replace(b"<", b"\\u003c").split(f'"{mark}"'.encode())
    with files.writing(path) as file:
        file.writelines((before, first))
        for column, text in zip(columns, others, strict=True):
            file.writelines(_chunks(column))
            file.write(text)
        file.write(after)


def _chunks(column: npt.NDArray[Any]) -> Iterator[bytes]:
    """Encode a column in chunks: Python's numbers take eight times an array's memory."""
    yield b"["
    for at in range(0, len(column), CHUNK):
        yield b"," * (at > 0) + msgspec.json.encode(column[at : at + CHUNK].tolist())[1:-1]
    yield b"]"


def _template() -> tuple[bytes, bytes]:
    """Return the page before and after the data."""
    folder = resources.files("commsched.plot") / "page"
    script = b"\n".join((folder / name).read_bytes() for name in SCRIPTS)
    page = (folder / "timeline.html").read_bytes().replace(b"@SCRIPT@", script)
    before, after = page.split(b"@DATA@")
    return before, after


def page_data(
    sides: Sequence[Timeline],
    step: int | None,
    ranks: Sequence[int] | None,
    side_names: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the data of the page as JSON and arrays; times are whole nanoseconds.

    Spans are columns, ordered by lane (a stream of a rank) and start; in a lane `start` is the
    difference from the previous span. Names and streams are indices into tables of both sides.
    """
    names = list(dict.fromkeys(name for t in sides for name in t.names))
    streams = list(dict.fromkeys(stream for t in sides for stream in t.streams))
    check_same_net(sides)
    opening = steps_to_draw(sides, step)
    last = sides[-1]
    return {
        "net": [word for word in (last.header.net, last.header.machine) if word is not None],
        "ranks": last.ranks,
        "held": len(measure.ranks_seen(last)),
        "plan": last.plan_hash if same_plan(sides) else "",
        "change": not same_plan(sides),  # between two plans; False: error of a prediction
        "clock": round(max(t.clock_uncertainty for t in sides) * 1e9),
        "warnings": [f"{t.kind}: {text}" for t in sides for text in t.warnings],
        "step": opening[-1],
        "open": _unfolded(sides, opening[-1], ranks),
        "names": names,
        "short": {name: short for name in names if (short := label(name).short) != name},
        "looks": [look._asdict() for look in colours.LOOKS],
        "exposed": colours.EXPOSED,
        "look": [colours.LOOKS.index(colours.look(name, measure.COMPUTE)) for name in names],
        "streams": [[stream, *_stream_look(stream)] for stream in streams],
        **_totals(sides),
        "sides": [
            {"kind": kind, **_side(t, names, streams, paths)}
            for kind, t, paths in zip(
                named(sides, side_names), sides, _paths(sides, opening), strict=True
            )
        ],
    }


def _unfolded(sides: Sequence[Timeline], step: int, ranks: Sequence[int] | None) -> dict[int, str]:
    """Return the ranks that are unfolded at first, and the role of each one."""
    chosen = ranks_to_draw(view(sides[-1], step), ranks)
    if ranks is not None or any(chosen.values()):
        return chosen
    return dict.fromkeys(sorted({r for t in sides for r in measure.ranks_seen(t).tolist()}), "")


def _stream_look(stream: str) -> tuple[int, bool]:
    """Return the look of all operations of a stream, or -1, and whether it communicates."""
    moves = measure.is_communication(stream)
    one = moves or stream in measure.CODECS
    return colours.LOOKS.index(colours.look("", stream)) if one else -1, moves


def _totals(sides: Sequence[Timeline]) -> dict[str, Any]:
    """Return seconds per side and their statistic, see `Totals`; None is unknown."""
    found = [totals(t) for t in sides]
    rows = {
        "iteration": [t.iteration for t in found],
        "exposed communication": [t.exposed for t in found],
        "hidden": [t.hidden for t in found],
    }
    return {
        "totals": [{"what": k, "seconds": [median(v) for v in s]} for k, s in rows.items()],
        "statistic": " and ".join(dict.fromkeys(side.statistic for side in found)),
    }


def _paths(sides: Sequence[Timeline], opening: Sequence[int]) -> list[dict[int, list[int]]]:
    """Return the rows of the critical path of each side's steps around the opening one."""
    found = []
    for t, step in zip(sides, opening, strict=True):
        after = t.prediction.after
        if not after and same_plan(sides):
            after = next((other.prediction.after for other in sides), {})
        steps = measure.steps(t)
        at = int(np.searchsorted(steps, step))
        first = max(0, min(at - MOST_PATHS // 2, len(steps) - MOST_PATHS))
        found.append(step_paths(t, after, steps[first : first + MOST_PATHS].tolist()))
    return found


def _side(
    t: Timeline, names: list[str], streams: list[str], paths: dict[int, list[int]]
) -> dict[str, Any]:
    """Return the data of one timeline: steps, lanes, columns of spans, notes of its plan."""
    to_name = {name: i for i, name in enumerate(names)}
    name = np.array([to_name[n] for n in t.names], np.int64)[t.name]
    stream = np.array([streams.index(s) for s in t.streams], np.int64)[t.stream]
    lane = t.rank.astype(np.int64) * len(streams) + stream
    order = np.lexsort((t.end, t.start, lane))
    lanes, first, count = np.unique(lane[order], return_index=True, return_counts=True)
    found = _exposed(t, lane, len(streams))
    start, end = _nanoseconds(t.start[order]), _nanoseconds(t.end[order])
    begin, stop = _nanoseconds(found.start), _nanoseconds(found.end)
    bare = np.bincount(np.searchsorted(lanes, found.group), minlength=len(lanes))
    return {
        "lanes": {
            "rank": lanes // len(streams),
            "stream": lanes % len(streams),
            "spans": count,
            "exposed": bare,
        },
        "steps": _steps(t),
        "median": median_step(t),
        "paths": _places(order, paths),
        "launches": msgspec.to_builtins(t.header.launches),
        "name": name[order],
        "step": t.step[order],
        "start": _differences(start, first),
        "length": end - start,
        "waited": _nanoseconds(t.waited[order]),
        "nbytes": np.rint(t.nbytes[order]).astype(np.int64),
        "exposed": {
            "start": _differences(begin, np.cumsum(bare) - bare),
            "length": stop - begin,
        },
    }


def _places(order: Ints, paths: dict[int, list[int]]) -> dict[int, list[int]]:
    """Return the positions of each path's rows after ordering."""
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    return {step: place[rows].tolist() for step, rows in paths.items()}


def _steps(t: Timeline) -> dict[str, Any]:
    """Return, per step, its first and last start on any rank, its last end, and its length."""
    steps = measure.steps(t)
    last = np.full(len(steps), -np.inf)
    np.maximum.at(last, np.searchsorted(steps, t.step), t.end)
    start = np.nanmin(measure.step_starts(t), axis=0)
    begun = np.nanmax(measure.step_starts(t), axis=0)
    iterations = measure.iteration_seconds(t).tolist()
    return {
        "step": steps,
        "start": _nanoseconds(start),
        "begun": _nanoseconds(begun),
        "end": _nanoseconds(np.maximum(start, last)),
        "iteration": [None if np.isnan(x) else round(x * 1e9) for x in iterations],
        "exposed": _nanoseconds(measure.exposed(t).mean(axis=0)),
    }


def _exposed(t: Timeline, lane: Ints, streams: int) -> Intervals:
    """Return the times at which each communication lane is busy and its rank computes nothing."""
    moves, computing = measure.communicates(t), measure.computes(t)
    used = np.unique(lane[moves] % streams)
    # the compute spans of a rank once for each communication lane that it may have
    lanes = t.rank[computing].astype(np.int64) * streams + used[:, None]
    start, end = (np.tile(column[computing], len(used)) for column in (t.start, t.end))
    busy = intervals(lanes.ravel(), start, end)
    return difference(intervals(lane[moves], t.start[moves], t.end[moves]), busy)


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)


def _differences(values: Ints, first: npt.NDArray[np.integer]) -> Ints:
    """Return each value minus the previous one; values at `first` stay as they are."""
    found = np.diff(values, prepend=0)
    first = first[first < len(values)]
    found[first] = values[first]
    return found
