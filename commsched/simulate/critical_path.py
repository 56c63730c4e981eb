"""The critical path of a simulation, walked from the last operation back to the first."""

from collections import defaultdict
from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.program.model import Kind
from commsched.simulate.timetable import EVERY, PlacedOp, PlacedTimes
from commsched.timeline.chain import chain_to, ended_last

TOUCH = 1e-12  # s between the end of an operation and the start of what it delayed


_Lane = tuple[int, str]  # first rank of a role, stream


class PathPart(NamedTuple):
    """A part of the critical path: an operation on one rank whose end let the next one begin."""

    rank: int
    stream: str
    name: str
    step: int
    seconds: float


class StepPath(NamedTuple):
    """The critical path of one step, as a mean over steps; its parts sum to the mean iteration."""

    rank: int  # that begins the last of the steps last
    steps: int
    seconds: float  # of one step
    streams: dict[str, float]  # s of one step, by stream; "idle": between operations


class _Place(NamedTuple):
    """An operation on one rank."""

    number: int  # among all that was placed
    column: int  # the rank's place in its role
    end: float  # s, on the rank whose wait it ended


def critical_path(placed: Sequence[PlacedOp], changes: Container[int] = ()) -> list[PathPart]:
    """Return the operations of the critical path, first to last.

    changes: steps before which all ranks wait for all, since another plan begins.
    """
    walk = _Dependencies(placed, changes)
    return [walk.part(place) for place in chain_to(walk.last_before(np.inf), walk.before)]


def step_path(
    placed: Sequence[PlacedOp], starts: Floats, count: int, changes: Container[int] = ()
) -> StepPath:
    """Walk back from when the last rank begins the last step, over `count` steps.

    starts: (steps, ranks) s, when each rank begins to compute; changes: see `critical_path`.
    """
    rank = int(starts[-1].argmax())
    begin = float(starts[-1 - count].max())
    seconds = (float(starts[-1, rank]) - begin) / count
    walk = _Dependencies(placed, changes)
    streams: dict[str, float] = defaultdict(float)
    place = walk.before(walk.first(rank, len(starts) - 1))
    while place is not None and place.end > begin:
        part = walk.part(place)
        streams[part.stream] += min(part.seconds, place.end - begin) / count
        place = walk.before(place)
    idle = seconds - sum(streams.values())
    if idle > TOUCH:
        streams["idle"] = idle
    return StepPath(rank, count, seconds, dict(streams))


class _Dependencies:
    """The operations that each operation can have waited for; a role is known by its first rank."""

    def __init__(self, placed: Sequence[PlacedOp], changes: Container[int]) -> None:
        self._placed, self._changes = placed, changes
        roles = {int(p.ranks[0]): p.ranks for p in placed}
        size = 1 + max(int(ranks.max()) for ranks in roles.values())
        self._role, self._column = np.zeros(size, np.int64), np.zeros(size, np.int64)
        for role, ranks in roles.items():
            self._role[ranks], self._column[ranks] = role, np.arange(len(ranks))
        self._where: dict[tuple[int, str, int], int] = {}  # role, name, step
        self._sends: dict[tuple[str, int], int] = {}
        self._lanes: dict[_Lane, dict[int, list[int]]] = defaultdict(dict)  # by step
        self._previous: list[int | None] = []  # on its stream, where operations keep their order
        latest: dict[_Lane, int] = {}
        for index, p in enumerate(placed):
            role = int(p.ranks[0])
            lane = role, p.op.stream
            self._previous.append(latest.get(lane))
            latest[lane] = index
            self._lanes[lane].setdefault(p.step, []).append(index)
            self._where[role, p.op.name, p.step] = index
            if p.op.kind is Kind.SEND:
                self._sends[p.op.name, p.step] = index
        pipelines = {int(p.ranks[0]) for p in placed if p.op.match or p.op.urgency}
        self._loose = {lane for lane in self._lanes if lane[0] in pipelines}
        self._spans: dict[tuple[_Lane, int, int], Floats] = {}  # lane, step, column
        self._times: dict[tuple[int, int], PlacedTimes] = {}  # by source and column

    def _on(self, index: int, column: int) -> tuple[float, float, int]:
        """Return an operation's start, end and last rank on one rank."""
        p = self._placed[index]
        key = id(p.source), column
        if key not in self._times:
            self._times[key] = p.source.times(EVERY, np.array([column]))
        start, end, _, last = self._times[key]
        return float(start[p.number, 0]), float(end[p.number, 0]), int(last[p.number, 0])

    def part(self, place: _Place) -> PathPart:
        """Describe an operation of the path."""
        p = self._placed[place.number]
        seconds = place.end - self._on(place.number, place.column)[0]
        return PathPart(int(p.ranks[place.column]), p.op.stream, p.op.name, p.step, seconds)

    def first(self, rank: int, step: int) -> _Place:
        """Return the first computation of a rank in a step."""
        role, column = int(self._role[rank]), int(self._column[rank])
        begins = [i for i in self._lanes[role, "compute"][step] if self._placed[i].number == 0]
        index = min(begins, key=lambda i: self._on(i, column)[0])
        return _Place(index, column, self._on(index, column)[1])

    def last_before(self, step: float) -> _Place | None:
        """Return the operation that ends last before a step."""
        numbers = {id(p.source): i for i, p in enumerate(self._placed) if p.step < step}
        index = ended_last(numbers.values(), lambda i: float(self._placed[i].source.end.max()))
        if index is None:
            return None
        return self._begun(index, int(self._placed[index].source.end.argmax()))

    def _begun(self, index: int, column: int) -> _Place:
        """Go to where an operation really begins: an exchange with the last rank of its team."""
        p = self._placed[index]
        _, end, last = self._on(index, column)
        other = self._where[int(self._role[last]), p.op.name, p.step]
        place = int(self._column[last])
        early = self._on(other, place)[0] < end
        return _Place(other, place, end) if early else _Place(index, column, end)

    def before(self, place: _Place) -> _Place | None:
        """Return the operation whose end let another one begin."""
        index, column, _ = place
        p = self._placed[index]
        found = [*self._inputs(p), self._neighbour(index, column)]
        if p.op.kind is Kind.RECV:
            other = self._sends[p.op.match, p.step]
            found += [*self._inputs(self._placed[other]), self._neighbour(other, column)]
        candidates = (i for i in found if i is not None)
        latest = ended_last(candidates, lambda i: self._on(i, column)[1])
        new_plan = p.step in self._changes
        if new_plan and (latest is None or self._placed[latest].step < p.step):
            return self.last_before(p.step)
        return None if latest is None else self._begun(latest, column)

    def _inputs(self, p: PlacedOp) -> list[int]:
        keys = [(int(p.ranks[0]), name, p.step - back) for name, back in p.op.after]
        return [
            self._where[key] for key in keys if key in self._where
        ]  # other plans' operations are left out

    def _neighbour(self, index: int, column: int) -> int | None:
        """Return the operation before this one on its stream, unless both are in one turn.

        Inside a turn, the operation before is an input of this one.
        """
        p = self._placed[index]
        lane = int(p.ranks[0]), p.op.stream
        if lane not in self._loose:
            return self._previous[index]
        if p.number > 0:
            return None
        start = self._on(index, column)[0]
        for step in range(p.step, -1, -1):
            members = np.array(self._lanes[lane].get(step, []), np.int64)
            starts, ends = self._spans_of(lane, step, column)
            before = (starts < start) | ((starts == start) & (members < index))
            early = np.where(before & (ends <= start + TOUCH), ends, -np.inf)
            if len(members) and np.isfinite(early.max()):
                return int(members[early.argmax()])
        return None

    def _spans_of(self, lane: _Lane, step: int, column: int) -> Floats:
        """Return when the operations of a lane start and end in a step on one rank, (2, n) s."""
        key = lane, step, column
        if key not in self._spans:
            members = self._lanes[lane].get(step, [])
            spans = np.array([self._on(i, column)[:2] for i in members])
            self._spans[key] = spans.reshape(-1, 2).T
        return self._spans[key]
