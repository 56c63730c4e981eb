"""The critical path of a simulation, walked from the last operation back to the first."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.program import Op

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Placed(NamedTuple):
    """One operation of one step, for all ranks of its role."""

    op: Op
    step: int
    ranks: Ints
    start: Floats
    end: Floats
    sent: Floats
    last: Ints  # (ranks,) for whom an exchange waits: the rank of its team that comes last


class PathPart(NamedTuple):
    """A stretch of the critical path: an operation on one rank that ended the wait of the next."""

    rank: int
    stream: str
    name: str
    step: int
    seconds: float


def critical_path(placed: Sequence[Placed], size: int) -> list[PathPart]:
    """From the first operation to the last, on `size` ranks; what must get faster."""
    walk = _Walk(placed, size)
    index = max(range(len(placed)), key=lambda i: float(placed[i].end.max()))
    rank = int(placed[index].ranks[placed[index].end.argmax()])
    path: list[PathPart] = []
    while index >= 0:
        end = float(placed[index].end[walk.column[rank]])
        index, rank = walk.begins(index, rank)
        p = placed[index]
        seconds = end - float(p.start[walk.column[rank]])
        path.append(PathPart(rank, p.op.stream, p.op.name, p.step, seconds))
        index = walk.before(index, rank)
    return path[::-1]


class _Walk:
    """What each placed operation came after."""

    def __init__(self, placed: Sequence[Placed], size: int) -> None:
        self._placed = placed
        self._role, self.column = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._where: dict[tuple[int, str, int], int] = {}
        self._previous: list[int] = []
        lanes: dict[tuple[int, str], int] = {}
        for index, p in enumerate(placed):
            role = int(p.ranks[0])
            if (role, p.op.stream) not in lanes:
                self._role[p.ranks], self.column[p.ranks] = role, np.arange(len(p.ranks))
            self._previous.append(lanes.get((role, p.op.stream), -1))
            lanes[role, p.op.stream] = index
            self._where[role, p.op.name, p.step] = index

    def begins(self, index: int, rank: int) -> tuple[int, int]:
        """An exchange begins in earnest with the last rank of its team."""
        p = self._placed[index]
        last = int(p.last[self.column[rank]])
        other = self._where[int(self._role[last]), p.op.name, p.step]
        starts = float(self._placed[other].start[self.column[last]])
        return (other, last) if starts < float(p.end[self.column[rank]]) else (index, rank)

    def before(self, index: int, rank: int) -> int:
        """Of what an operation of a rank came after, what ended last; -1 where it is the first."""
        p, role = self._placed[index], int(self._role[rank])
        inputs = [self._where[role, n, p.step - b] for n, b in p.op.after if p.step >= b]
        found = [i for i in (self._previous[index], *inputs) if i >= 0]
        column = self.column[rank]
        return max(found, key=lambda i: float(self._placed[i].end[column]), default=-1)
