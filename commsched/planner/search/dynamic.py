"""Bucket boundaries by dynamic programming over a fixed order of units."""

from collections.abc import Sequence

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.planner.search.problem import Problem
from commsched.planner.space import Bucket, Candidate, MethodChoice, Unit, bucket, spec_of
from commsched.simulate.clocks import Clocks

STREAMS = ("encode", "exchange", "decode")
LABELS = 6  # partial plans kept per boundary
LONGEST = 160  # units in one bucket
SPARSE = 12  # units in one bucket if every bucket must be priced separately


class Segments:
    """The prices of all segments, which are runs of units: (start, last)."""

    def __init__(self, problem: Problem, units: Sequence[Unit]) -> None:
        self.size = n = len(units)
        self.problem = problem
        self.units = units
        numel = np.array([u.numel for u in units], np.float64)
        ends = np.concatenate([[0.0], np.cumsum(numel)])
        alone = np.array([bool(u.forced) for u in units])
        sparse = np.array([u.sparse for u in units])
        start, last = np.triu_indices(n)
        near = last - start < LONGEST
        mixed = np.concatenate([[0], np.cumsum(sparse)])
        special = mixed[last + 1] > mixed[start]
        near &= ~special | (last - start < SPARSE)
        barred = np.concatenate([[0], np.cumsum(alone)])
        near &= (barred[last + 1] == barred[start]) | (start == last)
        self.start, self.last = start[near], last[near]
        self.numel = ends[self.last + 1] - ends[self.start]
        self.ready = _spread(np.maximum, [u.ready for u in units], self.start, self.last)
        self.after = _spread(np.minimum, [u.after for u in units], self.start, self.last)
        self.special = special[near] | alone[self.start]
        self.options = self._options()

    def _options(self) -> list[tuple[Ints, Floats]]:
        """Return for each option (segments,) methods, (3, segments) s to encode, exchange, decode.

        The first option has the shortest exchange, the second the least sum of all three.
        """
        prices, count = self.problem.prices, len(self.numel)
        best = [np.full(count, np.inf), np.full(count, np.inf)]
        method = [np.zeros(count, np.int64) for _ in best]
        costs = [np.zeros((3, count)) for _ in best]

        def offer(where: Ints, number: int, seconds: Floats) -> None:
            vote, encode, exchange, decode = seconds.sum(axis=1)
            three = np.stack([encode, vote + exchange, decode])
            whole = three.sum(axis=0)
            scores = three[1] + 1e-6 * whole, whole
            for option, score in enumerate(scores):
                better = score < best[option][where]
                chosen = where[better]
                best[option][chosen] = score[better]
                method[option][chosen] = number
                costs[option][:, chosen] = three[:, better]

        plain = np.flatnonzero(~self.special)
        for number in prices.plain:
            where = plain[self._allowed(number)[plain]] if self.problem.guard.active else plain
            if len(where) and prices.methods[number].matrix_sums:
                offer(where, number, self.of_matrices(number)[:, :, where])
            elif len(where):
                offer(where, number, prices.by_size(number, self.numel[where]))
        for i in np.flatnonzero(self.special).tolist():
            made = self.bucket(int(self.start[i]), int(self.last[i]) + 1)
            for number in self.problem.options(made):
                rows = prices.rows([made], [number], 0.0)
                offer(np.array([i]), number, rows.seconds)
        return list(zip(method, costs, strict=True))

    def of_matrices(self, number: int) -> Floats:
        """Return the (4, 2, segments) s of a method with `matrix_sums`."""
        prices, net = self.problem.prices, self.problem.request.net
        units = [prices.matrix_work(spec_of(bucket([u]), net), number) for u in self.units]
        summed = [np.cumsum([0.0 * some[0], *some], axis=0) for some in zip(*units, strict=True)]
        work, numel = (each[self.last + 1] - each[self.start] for each in summed)
        return prices.with_matrix_sums(np.moveaxis(work, 0, -1), numel.T, number)

    def _allowed(self, number: int) -> Bools:
        """Tell for each segment whether all its units may have a method."""
        method = self.problem.prices.methods[number]
        barred = np.cumsum([0, *~self.problem.guard.units(method, self.units)])
        found: Bools = barred[self.last + 1] == barred[self.start]
        return found

    def bucket(self, start: int, stop: int) -> Bucket:
        """Return the bucket of units [start, stop)."""
        return bucket(self.units[start:stop])


def _spread(pick: np.ufunc, values: Sequence[float], start: Ints, last: Ints) -> Floats:
    """Return the largest or least value of each segment."""
    n = len(values)
    table = np.empty((n, n))
    for i in range(n):
        table[i, i:] = pick.accumulate(np.array(values[i:], np.float64))
    return table[start, last]


def boundaries(problem: Problem, units: Sequence[Unit], late: bool) -> Candidate:
    """Return near-optimal boundaries and methods for units in this order.

    A label is a partial plan: clocks of the encode, exchange and decode streams, and the least
    iteration that the plan allows. Each boundary keeps up to LABELS labels; no label is worse than
    another both in its exchange clock and in its iteration.
    """
    segments = Segments(problem, units)
    clock = problem.clock
    remaining = np.array(clock.remaining)
    of_layer = np.zeros(len(remaining))
    for unit in units:
        of_layer[unit.after] += unit.numel * clock.apply
    later = np.cumsum(of_layer[::-1])[::-1]
    after = segments.after.astype(np.int64)
    total = float(of_layer.sum())
    if late:
        tails = remaining[after] + later[after]
    else:
        ends = np.cumsum([u.numel * clock.apply for u in units])
        tails = sum(clock.forward) + total - ends[segments.last] + segments.numel * clock.apply
    backward = sum(clock.backward)
    least = backward + sum(clock.forward) + total
    by_last = np.argsort(segments.last, kind="stable")
    edges = np.searchsorted(segments.last[by_last], np.arange(segments.size + 1))
    clocks = np.zeros((segments.size + 1, LABELS, 4))
    clocks[..., 3] = np.inf  # no label yet
    clocks[0, 0, 3] = least
    origin = np.zeros((segments.size + 1, LABELS, 3), np.int64)  # segment, option, label
    streams = Clocks(1, clock.overlap, clock.waking)
    streams.free["compute"] = np.array([[backward]])
    for last in range(segments.size):
        problem.check()
        here = by_last[edges[last] : edges[last + 1]]
        before = clocks[segments.start[here]]  # (segments, labels, 4)
        found, where = [], []
        every = here
        for option, (methods, costs) in enumerate(segments.options):
            if option:  # skip segments whose two options are equal
                here = every[methods[every] != segments.options[0][0][every]]
                before = clocks[segments.start[here]]
            for number, stream in enumerate(STREAMS):
                streams.free[stream] = before[..., number]
            three = tuple(costs[:, here, None])
            decoded = streams.phase(segments.ready[here, None], three, gathers=True)
            cost = np.maximum(before[..., 3], decoded + tails[here, None])
            clocks_now = [streams.free[stream] for stream in STREAMS]
            found.append(np.stack([*clocks_now, cost], axis=-1).reshape(-1, 4))
            grid = np.indices((len(here), LABELS)).reshape(2, -1)
            where.append(np.stack([here[grid[0]], np.full(grid.shape[1], option), grid[1]], axis=1))
        _keep(np.concatenate(found), np.concatenate(where), clocks[last + 1], origin[last + 1])
    return _traced(problem, segments, clocks, origin, late)


def _keep(found: Floats, where: Ints, clocks: Floats, origin: Ints) -> None:
    """Keep labels on the Pareto front of an early exchange clock and a short iteration."""
    order = np.lexsort((found[:, 0], found[:, 1], found[:, 3]))
    exchange = found[order, 1]
    best = np.minimum.accumulate(exchange)
    front = order[np.append(True, exchange[1:] < best[:-1])]
    front = front[np.isfinite(found[front, 3])]
    if len(front) > LABELS:
        front = front[np.unique(np.linspace(0, len(front) - 1, LABELS).round().astype(int))]
    clocks[: len(front)] = found[front]
    origin[: len(front)] = where[front]


def _traced(
    problem: Problem, segments: Segments, clocks: Floats, origin: Ints, late: bool
) -> Candidate:
    at, label = segments.size, int(clocks[-1, :, 3].argmin())
    choices: list[MethodChoice] = []
    while at > 0:
        segment, option, label = origin[at, label].tolist()
        start = int(segments.start[segment])
        method = int(segments.options[option][0][segment])
        choices.append(MethodChoice(segments.bucket(start, at), method))
        at = start
    return Candidate(tuple(reversed(choices)), late)
