"""Unions, intersections and differences of time intervals, for many ranks in one sweep."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Bools, Floats, Ints

Counts = npt.NDArray[np.int32]
AT_ONCE = 2**19  # intervals of a sweep; each takes about 200 B


class Intervals(NamedTuple):
    """Half-open intervals [start, end) as columns of length n, in any order.

    Intervals of different groups (ranks, or streams of ranks) never meet.
    """

    group: Ints
    start: Floats  # s
    end: Floats  # s, not before start

    def rows(self, some: Bools | slice) -> "Intervals":
        """Return some of the intervals."""
        return Intervals(self.group[some], self.start[some], self.end[some])


class Cover(NamedTuple):
    """The time of each group, cut wherever an interval of any layer starts or ends."""

    group: Ints  # (pieces,)
    start: Floats  # (pieces,) s
    end: Floats  # (pieces,) s
    depth: npt.NDArray[
        np.int32
    ]  # (layers, pieces) sum of the weights of the layer's intervals over the piece

    def where(self, keep: Bools) -> Intervals:
        """Return the kept pieces as disjoint sorted intervals, joining those that touch."""
        group, start, end = self.group[keep], self.start[keep], self.end[keep]
        parted = (group[1:] != group[:-1]) | (start[1:] != end[:-1])
        if not len(group):
            return Intervals(group, start, end)
        first = np.concatenate(([True], parted))
        last = np.concatenate((parted, [True]))
        return Intervals(group[first], start[first], end[last])


def intervals(group: npt.NDArray[np.integer], start: Floats, end: Floats) -> Intervals:
    """Build intervals from columns of any integer type."""
    assert np.all(start <= end), "an interval ends before it starts"
    return Intervals(group.astype(np.int64), start, end)


def cover(*layers: Intervals, weights: tuple[Ints | int, ...] = ()) -> Cover:
    """Sweep over all groups and count the intervals (or add their weights) over each piece."""
    sizes = [len(layer.group) for layer in layers]
    change = np.zeros((len(layers), 2 * sum(sizes)), np.int32)
    at = 0
    for row in range(len(layers)):
        weight = weights[row] if weights else 1
        change[row, at : at + sizes[row]] = weight
        change[row, at + sizes[row] : at + 2 * sizes[row]] = -np.asarray(weight)
        at += 2 * sizes[row]
    group = np.concatenate([layer.group for layer in layers for _ in range(2)])
    time = np.concatenate([column for layer in layers for column in (layer.start, layer.end)])
    order = np.lexsort((time, group))
    group, time, change = group[order], time[order], change[:, order]
    depth = np.cumsum(change, axis=1, out=change)[:, :-1]
    # a group's changes add to zero, so the sum needs no reset between groups
    real = (group[1:] == group[:-1]) & (time[1:] > time[:-1])
    return Cover(group[:-1][real], time[:-1][real], time[1:][real], depth[:, real])


def union(a: Intervals) -> Intervals:
    """Return the time that any interval covers."""
    return _where(lambda depth: depth[0] > 0, a)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that both cover."""
    return _where(lambda depth: (depth[0] > 0) & (depth[1] > 0), a, b)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the time that `a` covers and `b` does not."""
    return _where(lambda depth: (depth[0] > 0) & (depth[1] == 0), a, b)


def _where(keep: Callable[[Counts], Bools], *layers: Intervals) -> Intervals:
    found = []
    for rows in batches(*(layer.group for layer in layers)):
        pieces = cover(*(layer.rows(some) for layer, some in zip(layers, rows, strict=True)))
        found.append(pieces.where(keep(pieces.depth)))
    return Intervals(*(np.concatenate(column) for column in zip(*found, strict=True)))


def batches(*groups: Ints) -> Iterator[tuple[Bools | slice, ...]]:
    """Yield the rows of whole groups, for each layer, ascending; a sweep over them fits memory."""
    if sum(map(len, groups)) <= AT_ONCE:
        yield (slice(None),) * len(groups)
        return
    every, sizes = np.unique(np.concatenate(groups), return_counts=True)
    batch = np.cumsum(sizes) // AT_ONCE
    for number in np.unique(batch):
        first, *_, last = every[batch == number].repeat(2)
        yield tuple((group >= first) & (group <= last) for group in groups)


def latest_before(a: Intervals) -> tuple[Ints, Ints]:
    """Pair each interval with the earlier interval of its group that ends last.

    Returns (earlier, later), indices into the columns of `a`; the first of a group has no pair.
    """
    n = len(a.group)
    order = np.lexsort((a.end, a.start, a.group))
    group, end = a.group[order], a.end[order]
    by_end = np.argsort(end, kind="stable")
    place = np.empty(n, np.int64)
    place[by_end] = np.arange(n)
    changed = np.concatenate(([False], group[1:] != group[:-1]))[:n]
    # whole numbers instead of times: a running maximum that restarts with each group, exactly
    running = np.maximum.accumulate(np.cumsum(changed) * n + place)
    latest = by_end[running % max(n, 1)]
    later = np.flatnonzero(~changed[1:]) + 1
    return order[latest[later - 1]], order[later]
