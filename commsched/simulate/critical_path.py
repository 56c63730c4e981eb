"""The critical path of a simulation, walked from the last operation back to the first."""

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.program.model import Kind, Op

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
TOUCH = 1e-12  # s between the end of an operation and the start of what it delayed


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


def critical_path(placed: Sequence[Placed], changes: Container[int] = ()) -> list[PathPart]:
    """From the first operation to the last: what must get faster for the run to get faster.

    changes: steps before which all ranks wait for all, since another plan begins.
    """
    walk = _Walk(placed)
    index = max(range(len(placed)), key=lambda i: float(placed[i].end.max()))
    column = int(placed[index].end.argmax())
    path: list[PathPart] = []
    while index >= 0:
        end = float(placed[index].end[column])
        index, column = walk.begins(index, column)
        p = placed[index]
        seconds = end - float(p.start[column])
        path.append(PathPart(int(p.ranks[column]), p.op.stream, p.op.name, p.step, seconds))
        index = walk.before(index, column)
        if p.step in changes and (index < 0 or placed[index].step < p.step):
            index = max(
                (i for i, earlier in enumerate(placed) if earlier.step < p.step),
                key=lambda i: float(placed[i].end.max()),
            )
            column = int(placed[index].end.argmax())
    return path[::-1]


class _Walk:
    """What each operation can have waited for; a column is a rank's place in its role."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self._placed = placed
        size = 1 + max(int(p.ranks.max()) for p in placed)
        self._role, self._column = np.zeros(size, np.int64), np.zeros(size, np.int64)
        self._where: dict[tuple[int, str, int], int] = {}  # role, name, step
        self._sends: dict[tuple[str, int], int] = {}
        self._lanes: dict[tuple[int, str], list[int]] = defaultdict(list)
        self._previous: list[int] = []  # on its stream, where operations keep their order
        for index, p in enumerate(placed):
            role = int(p.ranks[0])
            lane = self._lanes[role, p.op.stream]
            if not lane:
                self._role[p.ranks], self._column[p.ranks] = role, np.arange(len(p.ranks))
            self._previous.append(lane[-1] if lane else -1)
            lane.append(index)
            self._where[role, p.op.name, p.step] = index
            if p.op.kind is Kind.SEND:
                self._sends[p.op.name, p.step] = index
        pipelines = {int(p.ranks[0]) for p in placed if p.op.match or p.op.urgency}
        self._loose = {lane for lane in self._lanes if lane[0] in pipelines}
        self._ends: dict[tuple[int, str], Floats] = {}

    def begins(self, index: int, column: int) -> tuple[int, int]:
        """Where an operation begins in earnest: an exchange with the last rank of its team."""
        p = self._placed[index]
        last = int(p.last[column])
        other = self._where[int(self._role[last]), p.op.name, p.step]
        place = int(self._column[last])
        early = float(self._placed[other].start[place]) < float(p.end[column])
        return (other, place) if early else (index, column)

    def before(self, index: int, column: int) -> int:
        """The operation whose end began this one in a column, -1 for none."""
        p = self._placed[index]
        found = [*self._inputs(p), self._neighbour(index, column)]
        if p.op.kind is Kind.RECV:
            other = self._sends[p.op.match, p.step]
            found += [*self._inputs(self._placed[other]), self._neighbour(other, column)]
        candidates = [i for i in found if i >= 0]
        return max(candidates, key=lambda i: float(self._placed[i].end[column]), default=-1)

    def _inputs(self, p: Placed) -> list[int]:
        keys = [(int(p.ranks[0]), name, p.step - back) for name, back in p.op.after]
        return [self._where[key] for key in keys if key in self._where]  # of another plan: none

    def _neighbour(self, index: int, column: int) -> int:
        """The operation before this one on its stream."""
        p = self._placed[index]
        lane = int(p.ranks[0]), p.op.stream
        if lane not in self._loose:
            return self._previous[index]
        members = self._lanes[lane]
        if lane not in self._ends:
            self._ends[lane] = np.array([self._placed[i].end for i in members])
        ends = self._ends[lane][:, column]
        start = self._placed[index].start[column]
        early = np.where(ends <= start + TOUCH, ends, -np.inf)
        early[members.index(index)] = -np.inf
        at = int(early.argmax())
        return members[at] if np.isfinite(early[at]) else -1
