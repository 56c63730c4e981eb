"""Unions, intersections and differences of time intervals, for many ranks in one sweep."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Bools, Floats, Ints

Counts = npt.NDArray[np.int32]
AT_ONCE = 2**19  # intervals in one sweep; each takes about 200 B


class Intervals(NamedTuple):
    """Half-open intervals [start, end) as columns of length n, in any order.

    Intervals of different groups (ranks, or streams of ranks) are never combined.
    """

    group: Ints
    start: Floats  # s
    end: Floats  # s, not before start

    def rows(self, some: Bools | Ints | slice) -> "Intervals":
        """Return some of the intervals."""
        return Intervals(self.group[some], self.start[some], self.end[some])

    def meets(self, first: float, last: float) -> Bools:
        """Tell for each interval whether a part of it lies between two times."""
        return (self.start < last) & (self.end > first)

    def within(self, first: float, last: float) -> "Intervals":
        """Return the parts between two times."""
        if first == -inf and last == inf:
            return self
        some = self.rows(self.meets(first, last))
        return Intervals(some.group, np.maximum(some.start, first), np.minimum(some.end, last))

    def joined(self) -> "Intervals":
        """Join disjoint intervals that touch; they are sorted by group and start."""
        parted = (self.group[1:] != self.group[:-1]) | (self.start[1:] != self.end[:-1])
        if not len(self.group):
            return self
        first = np.concatenate(([True], parted))
        last = np.concatenate((parted, [True]))
        return Intervals(self.group[first], self.start[first], self.end[last])


class Cover(NamedTuple):
    """The time of each group, cut at every start and end of an interval of any layer."""

    group: Ints  # (pieces,)
    start: Floats  # (pieces,) s
    end: Floats  # (pieces,) s
    depth: npt.NDArray[
        np.int32
    ]  # (layers, pieces) sum of the weights of the layer's intervals that cover the piece

    def where(self, keep: Bools) -> Intervals:
        """Return the kept pieces as disjoint sorted intervals, joining those that touch."""
        return Intervals(self.group[keep], self.start[keep], self.end[keep]).joined()


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
    # the changes of a group sum to zero, so the sum needs no reset between groups
    real = (group[1:] == group[:-1]) & (time[1:] > time[:-1])
    return Cover(group[:-1][real], time[:-1][real], time[1:][real], depth[:, real])


def union(a: Intervals) -> Intervals:
    """Return the time covered by any interval."""
    return _where(lambda depth: depth[0] > 0, a)


def intersection(a: Intervals, b: Intervals) -> Intervals:
    """Return the time covered by both."""
    return _where(lambda depth: (depth[0] > 0) & (depth[1] > 0), a, b)


def difference(a: Intervals, b: Intervals) -> Intervals:
    """Return the time covered by `a` but not by `b`."""
    return _where(lambda depth: (depth[0] > 0) & (depth[1] == 0), a, b)


def _where(keep: Callable[[Counts], Bools], *layers: Intervals) -> Intervals:
    found = []
    for rows in batches(*(layer.group for layer in layers)):
        some = [layer.rows(row) for layer, row in zip(layers, rows, strict=True)]
        pieces = []
        for first, last in slabs(*some):
            cut = cover(*(one.within(first, last) for one in some))
            pieces.append(cut.where(keep(cut.depth)))
        found.append(_one_after_another(pieces) if len(pieces) > 1 else pieces[0])
    return Intervals(*(np.concatenate(column) for column in zip(*found, strict=True)))


def slabs(*layers: Intervals) -> Iterator[tuple[float, float]]:
    """Cut all time so that a sweep over each part fits memory."""
    bounds = np.array([-inf, inf])
    if sum(len(layer.group) for layer in layers) > AT_ONCE:
        starts = np.sort(np.concatenate([layer.start for layer in layers]))
        bounds = np.unique([*bounds, *starts[AT_ONCE:-1:AT_ONCE]])
    return pairwise(bounds.tolist())


def _one_after_another(parts: Sequence[Intervals]) -> Intervals:
    """Join the intervals of parts of the time."""
    found = Intervals(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    return found.rows(np.lexsort((found.start, found.group))).joined()


def batches(*groups: Ints) -> Iterator[tuple[Bools | slice, ...]]:
    """Yield rows of whole groups for each layer, ascending; a sweep over the rows fits memory."""
    if sum(map(len, groups)) <= AT_ONCE:
        yield (slice(None),) * len(groups)
        return
    every, sizes = np.unique(np.concatenate(groups), return_counts=True)
    batch = np.cumsum(sizes) // AT_ONCE
    for number in np.unique(batch):
        first, *_, last = every[batch == number].repeat(2)
        yield tuple((group >= first) & (group <= last) for group in groups)
