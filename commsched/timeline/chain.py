"""Chains of operations that waited for each other, walked from the last one back to the first."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from commsched.timeline.model import Timeline

Key = tuple[str, int]  # name and step
After = Mapping[str, Sequence[tuple[str, int]]]  # operation -> (input, steps back)
Node = TypeVar("Node")
TOUCH = 2e-9  # s; files round moments to whole nanoseconds


def chain_to(last: Node | None, before: Callable[[Node], Node | None]) -> list[Node]:
    """Return the operations that led to the last one, in order of time.

    before: returns the operation for which another one waited, or None.
    """
    found: list[Node] = []
    while last is not None:
        found.append(last)
        last = before(last)
    return found[::-1]


def ended_last(candidates: Iterable[Node], end: Callable[[Node], float]) -> Node | None:
    """Return the candidate that ended last, for which the next operation waited."""
    return max(candidates, key=end, default=None)


class Walk:
    """The spans of one rank in the order of their ends, and the predecessor of each span.

    Candidates for a span's predecessor are the previous span on its stream and its inputs
    (`after`): the predecessor is the candidate that ended last. If `after` does not know the span,
    the predecessor is the last of the rank's spans that ended before the span began.
    """

    def __init__(self, t: Timeline, rank: int, after: After) -> None:
        mine = np.flatnonzero(t.rank == rank)
        self.rows = mine[np.lexsort((t.start[mine], t.end[mine]))]
        self.start: list[float] = t.start[self.rows].tolist()
        self.end: list[float] = t.end[self.rows].tolist()
        self.name: list[int] = t.name[self.rows].tolist()
        self.step: list[int] = t.step[self.rows].tolist()
        self._names = t.names
        self._after = after
        self.at: dict[Key, int] = {self.key(i): i for i in range(len(self.rows))}
        self._previous = self._lanes(t.stream[self.rows].tolist())

    def key(self, i: int) -> Key:
        """Return the identity of span `i`."""
        return self._names[self.name[i]], self.step[i]

    def _lanes(self, stream: list[int]) -> list[int]:
        previous, last = [-1] * len(stream), dict.fromkeys(stream, -1)
        for i in sorted(range(len(stream)), key=self.start.__getitem__):
            previous[i], last[stream[i]] = last[stream[i]], i
        return previous

    def before(self, i: int) -> int:
        """Return the predecessor of span `i`, always an earlier span, or -1."""
        name, step = self.key(i)
        inputs = self._after.get(name)
        if inputs is not None:
            found = [self.at.get((other, step - back), -1) for other, back in inputs]
            earlier = (j for j in (self._previous[i], *found) if 0 <= j < i)
            known = ended_last(earlier, float)  # spans are ordered by end
            if known is not None:
                return known
        return min(self.last_before(self.start[i]), i - 1)

    def last_before(self, moment: float) -> int:
        """Return the last span that ended by `moment`, or -1."""
        return bisect_right(self.end, moment + TOUCH) - 1

    def chain(self, begin: float, end: float, successor: int) -> list[int]:
        """Return the spans that led to `end`, back to `begin`, in order of time.

        `successor` is the span that begins at `end`; -1 if the timeline ends there.
        """

        def within(i: int) -> int | None:
            return i if i >= 0 and self.end[i] > begin else None

        last = self.last_before(end) if successor < 0 else self.before(successor)
        return chain_to(within(last), lambda i: within(self.before(i)))
