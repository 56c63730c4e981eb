"""Measures of a timeline, with equal definitions for predictions and runs.

Results per rank have one row for each of `ranks_seen(t)`, results per step one column for each of
`steps(t)`. Steps may overlap: a step of a rank begins with its first compute span and lasts until
the rank's next step begins. The end of the last step is unknown, so it does not count; all time
after its start belongs to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from commsched.arrays import Bools, Floats, Ints
from commsched.timeline.intervals import (
    Intervals,
    batches,
    cover,
    difference,
    intervals,
    slabs,
    union,
)
from commsched.timeline.model import Timeline

Found = TypeVar("Found")

COMPUTE = "compute"
CODECS = ("codec", "encode", "decode")
MESSAGES = ("send", "receive")  # streams of messages between two ranks


def is_communication(stream: str) -> bool:
    """Tell whether a stream moves data between ranks: all do except compute and coding streams."""
    return stream != COMPUTE and stream not in CODECS


def once(compute: Callable[[Timeline], Found]) -> Callable[[Timeline], Found]:
    """Cache a function's result for a timeline in the timeline, which never changes."""
    key = f"once {compute.__name__}"

    @wraps(compute)
    def kept(t: Timeline) -> Found:
        if key not in t.__dict__:
            t.__dict__[key] = compute(t)
        found: Found = t.__dict__[key]
        return found

    return kept


@once
def ranks_seen(t: Timeline) -> npt.NDArray[np.int32]:
    """Return the ranks that have a span, ascending."""
    return np.unique(t.rank)


@once
def steps(t: Timeline) -> npt.NDArray[np.int32]:
    """Return the steps that have a span, ascending."""
    return np.unique(t.step)


def settled(t: Timeline, skip_first: int = 1) -> Bools:
    """Return (steps,) which steps count: all except the first ones and the last.

    If there are two steps, the first one counts; a single step does not count.
    """
    index, count = np.arange(len(steps(t))), len(steps(t))
    return (index >= min(skip_first, count - 2)) & (index < count - 1)


def communicates(t: Timeline) -> Bools:
    """Return (n,) whether each span lies on a communication stream."""
    return np.array([is_communication(s) for s in t.streams], bool)[t.stream]


def computes(t: Timeline) -> Bools:
    """Return (n,) whether each span lies on the compute stream."""
    return np.array([s == COMPUTE for s in t.streams], bool)[t.stream]


def cells(t: Timeline) -> tuple[Ints, Ints, tuple[int, int]]:
    """Return (n,) the row of each span's rank, (n,) the column of its step, and their numbers."""
    seen, step = ranks_seen(t), steps(t)
    shape = (len(seen), len(step))
    return np.searchsorted(seen, t.rank), np.searchsorted(step, t.step), shape


@once
def step_starts(t: Timeline) -> Floats:
    """Return (ranks, steps) s: the first compute span, else the first span, else NaN."""
    row, column, shape = cells(t)
    first = np.full((2, *shape), np.inf)
    computing = computes(t)
    np.minimum.at(first[0], (row[computing], column[computing]), t.start[computing])
    np.minimum.at(first[1], (row, column), t.start)
    starts = np.where(np.isfinite(first[0]), first[0], first[1])
    return np.where(np.isfinite(starts), starts, np.nan)


def iteration_seconds(t: Timeline) -> Floats:
    """Return (steps,) s until the next step has begun everywhere; NaN for the last step.

    An iteration lasts from the begin of a step on the last rank to begin until that of the next
    step. So iterations sum to the elapsed time, even if ranks are slow in turn.
    """
    if not len(t):
        return np.zeros(0)
    begun = np.fmax.reduce(step_starts(t), axis=0)  # fmax ignores NaN
    found: Floats = np.append(np.maximum(np.diff(begun), 0.0), np.nan)
    return found


def spans_of(t: Timeline, keep: Bools) -> Intervals:
    """Return the kept spans as intervals, grouped by rank."""
    return intervals(t.rank[keep], t.start[keep], t.end[keep])


@once
def exposed_intervals(t: Timeline) -> Intervals:
    """Return, per rank, the times at which a communication stream is busy and compute is idle."""
    return difference(spans_of(t, communicates(t)), spans_of(t, computes(t)))


@once
def exposed(t: Timeline) -> Floats:
    """Return (ranks, steps) s within the step in which communication runs and compute does not."""
    return _within_steps(t, exposed_intervals(t))


def hidden(t: Timeline) -> Floats:
    """Return (ranks, steps) s within the step in which communication runs under compute."""
    return _within_steps(t, union(spans_of(t, communicates(t)))) - exposed(t)


def idle(t: Timeline) -> Floats:
    """Return (ranks, steps) s within the step in which nothing runs: a pipeline's bubble."""
    if not len(t):
        return np.zeros((0, 0))
    windows, column = _windows(t)
    shape = (len(ranks_seen(t)), len(steps(t)))
    place = np.searchsorted(ranks_seen(t), windows.group) * shape[1] + column
    lengths = np.bincount(place, windows.end - windows.start, shape[0] * shape[1])
    every = union(spans_of(t, np.ones(len(t), bool)))
    return lengths.reshape(shape) - _within_steps(t, every)


def has_messages(t: Timeline) -> bool:
    """Tell whether ranks send messages to single ranks, like the stages of a pipeline."""
    return bool(np.isin(t.stream, [i for i, s in enumerate(t.streams) if s in MESSAGES]).any())


def _within_steps(t: Timeline, found: Intervals) -> Floats:
    """Add up disjoint intervals by rank and by the rank's step that contains them."""
    windows, column = _windows(t)
    seen, shape = ranks_seen(t), (len(ranks_seen(t)), len(steps(t)))
    sums = np.zeros(shape[0] * shape[1])
    for some, of_them in batches(found.group, windows.group):
        those, their, columns = found.rows(some), windows.rows(of_them), column[of_them]
        for first, last in slabs(those, their):
            weights = (1, columns[their.meets(first, last)] + 1)
            pieces = cover(those.within(first, last), their.within(first, last), weights=weights)
            inside = (pieces.depth[0] > 0) & (pieces.depth[1] > 0)
            row = np.searchsorted(seen, pieces.group[inside])
            place = row * shape[1] + pieces.depth[1][inside] - 1
            sums += np.bincount(place, (pieces.end - pieces.start)[inside], len(sums))
    return sums.reshape(shape)


def _windows(t: Timeline) -> tuple[Intervals, Ints]:
    """Return the time of each rank's steps, which never overlap, and the column of each step."""
    if not len(t):
        nothing = np.zeros(0, np.int64)
        return Intervals(nothing, np.zeros(0), np.zeros(0)), nothing
    starts = step_starts(t)
    row, column = np.nonzero(~np.isnan(starts))
    start = np.fmax.accumulate(starts, axis=1)[row, column]
    end = np.append(start[1:], 0.0)
    end[np.append(row[1:] != row[:-1], True)] = t.end.max()
    return intervals(ranks_seen(t)[row], start, np.maximum(start, end)), column


def busy(t: Timeline) -> Floats:
    """Return (ranks, steps, streams) s: the total duration of each step's spans."""
    row, column, (ranks, count) = cells(t)
    shape = (ranks, count, len(t.streams))
    place = (row * count + column) * len(t.streams) + t.stream
    return np.bincount(place, t.end - t.start, prod(shape)).astype(np.float64).reshape(shape)


def waiting_filled(t: Timeline, apart: Mapping[str, Ints] | None = None) -> Timeline:
    """Return the timeline with the `waited` of every communication span filled in.

        waited = max(0, min(end, latest start of the same name and step over all ranks) - start)

    An exchange waits until its last rank arrives. Other streams keep their values; the spans of
    messages between two ranks begin only when a message can be sent or received. `apart`: for the
    name of an exchange that each team does by itself, the team of every rank, (ranks,).
    """
    if not len(t):
        return t
    chosen = communicates(t) & ~np.array([s in MESSAGES for s in t.streams], bool)[t.stream]
    key = t.name.astype(np.int64) * 2**31 + t.step
    if apart:  # each team has a separate exchange
        _, key = np.unique(key, return_inverse=True)
        table = np.array([apart.get(name, np.zeros(t.ranks, np.int64)) for name in t.names])
        key = key * (table.max() + 1) + table[t.name, t.rank]
    _, same = np.unique(key, return_inverse=True)
    latest = np.full(int(same.max()) + 1, -np.inf)
    np.maximum.at(latest, same[chosen], t.start[chosen])
    waited = np.maximum(np.minimum(t.end, latest[same]) - t.start, 0.0)
    return replace(t, waited=np.where(chosen, waited, t.waited))
