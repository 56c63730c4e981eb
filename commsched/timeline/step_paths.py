"""The critical path of steps in a timeline, across the ranks."""

from collections.abc import Sequence

import numpy as np

from commsched.arrays import Ints
from commsched.timeline import measure
from commsched.timeline.chain import TOUCH, After, Walk, chain_to
from commsched.timeline.model import Timeline

Place = tuple[int, int]  # rank, span in the order of its walk
LATE = 1e-6  # s: a rank that arrives this close to the end of a wait may have ended the wait
ALIKE = 1e-3  # of the step: shorter waits do not lead to another rank


def step_paths(t: Timeline, after: After, steps: Sequence[int]) -> dict[int, list[int]]:
    """Return the rows of each step's critical path, in order of time.

    A path covers an iteration: it leads from the next step's start on the last rank back to the
    time at which the step has begun on all ranks. If a rank waits in an exchange, the path
    continues on the rank that arrived last. `after`: see `Walk`. `steps` ascend.
    """
    known = measure.steps(t)
    columns = np.searchsorted(known, steps).tolist()
    around = [(known[max(k - 1, 0)], known[min(k + 1, len(known) - 1)]) for k in columns]
    near = np.flatnonzero((t.step >= around[0][0]) & (t.step <= around[-1][1]))
    step_of, found = t.step[near], {}
    for step, column, (first, last) in zip(steps, columns, around, strict=True):
        rows = near[(step_of >= first) & (step_of <= last)]
        found[step] = rows[_Paths(t, rows, after).path(column)].tolist()
    return found


class _Paths:
    """The spans of a step and its neighbours, and the walks of their ranks."""

    def __init__(self, t: Timeline, rows: Ints, after: After) -> None:
        self._near, self._after = t.select(rows), after
        self._starts, self._seen = measure.step_starts(t), measure.ranks_seen(t)
        self._known = measure.steps(t)
        self._moves = measure.communicates(self._near)
        self._walks: dict[int, Walk] = {}
        self._short = LATE  # s

    def _walk(self, rank: int) -> Walk:
        if rank not in self._walks:
            self._walks[rank] = Walk(self._near, rank, self._after)
        return self._walks[rank]

    def path(self, column: int) -> list[int]:
        """Return the path's rows among the spans near the step."""
        begin = float(np.nanmax(self._starts[:, column]))
        end = np.nanmax(self._near.end[self._near.step == self._known[column]])
        self._short = max(LATE, ALIKE * (float(end) - begin))
        last = self._last(column)

        def before(place: Place) -> Place | None:
            rank, i = place
            previous = self._walk(rank).before(i)
            return self._within(rank, previous, begin)

        first = self._within(*last, begin)
        return [int(self._walk(rank).rows[i]) for rank, i in chain_to(first, before)]

    def _last(self, column: int) -> Place:
        """Return the last operation before the next step begins on the last rank."""
        t = self._near
        if column + 1 < len(self._known):
            starts = self._starts[:, column + 1]
            row = int(np.flatnonzero(starts >= np.nanmax(starts) - self._short)[0])
            rank, end = int(self._seen[row]), float(self._starts[row, column + 1])
            walk, following = self._walk(rank), int(self._known[column + 1])
            for i, start in enumerate(walk.start):
                if start == end and walk.step[i] == following:
                    return rank, walk.before(i)
            return rank, walk.last_before(end)
        mine = np.flatnonzero(t.step == self._known[column])
        rank = int(t.rank[mine[t.end[mine].argmax()]])
        return rank, self._walk(rank).last_before(float(t.end[mine].max()))

    def _within(self, rank: int, i: int, begin: float) -> Place | None:
        """Return a span of the path, or None before `begin`; for an exchange, the last rank's."""
        walk = self._walk(rank)
        if i < 0 or walk.end[i] <= begin + TOUCH:
            return None
        t, row = self._near, int(walk.rows[i])
        if not self._moves[row] or t.waited[row] <= self._short:
            return rank, i
        arrived = float(t.start[row] + t.waited[row])
        same = np.flatnonzero((t.name == t.name[row]) & (t.step == t.step[row]))
        other = int(same[np.abs(t.start[same] - arrived).argmin()])
        if other == row or abs(float(t.start[other]) - arrived) > LATE:
            return rank, i
        walk = self._walk(int(t.rank[other]))
        j = int(np.flatnonzero(walk.rows == other)[0])
        return int(t.rank[other]), j
