"""The placed operations; times inside a turn are computed only when they are needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.program.model import Op
from commsched.simulate.turns import Chain

EVERY = slice(None)
Columns = Ints | slice  # ranks of a role, by their places


class PlacedTimes(NamedTuple):
    """When consecutive operations were placed on ranks of a role, (operations, ranks) each."""

    start: Floats  # s
    end: Floats  # s
    sent: Floats  # B
    last: Ints  # for whom an exchange waits: the rank of its team that comes last


class Source(Protocol):
    """Consecutive operations of a role that were placed at once."""

    @property
    def start(self) -> Floats:
        """Return when the first operation begins: (ranks,) s."""

    @property
    def end(self) -> Floats:
        """Return when the last operation ends: (ranks,) s."""

    @property
    def count(self) -> int:
        """Return how many operations there are."""

    def times(self, some: slice, columns: Columns) -> PlacedTimes:
        """Return the times of some operations on some ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedAlone:
    """A single operation, (ranks,) each; see `PlacedTimes`."""

    start: Floats
    end: Floats
    sent: Floats
    last: Ints
    count: ClassVar[int] = 1

    def times(self, some: slice, columns: Columns) -> PlacedTimes:
        start, end, sent = (x[np.newaxis, columns] for x in (self.start, self.end, self.sent))
        return PlacedTimes(start, end, sent, self.last[np.newaxis, columns])


class Teams:
    """A role's neighbouring ranks that go through their turns together, and their jitter."""

    def __init__(self, ranks: Ints, factor: Floats, width: int) -> None:
        self.ranks, self.factor, self.width = ranks, factor, width
        self.most, self.slowest = self.latest(factor)

    def latest(self, values: Floats) -> tuple[Floats, Ints]:
        """Return each team's largest value, and the place of the rank that has it: (teams,)."""
        teams = values.reshape(-1, self.width)
        at = teams.argmax(axis=1)
        rows = np.arange(len(teams))
        return teams[rows, at], rows * self.width + at


@dataclass(frozen=True, slots=True, eq=False)
class PlacedTurn:
    """The operations of a turn in every team, see `Chain`; start, end: (ranks,) s.

    With f a rank's jitter, F the largest one of its team, and A, B, C of `Chain.begins`, an
    operation begins at
        start + A f + C                 up to the turn's first sum
        first + A f + B F + C           behind it; first = when its last rank begins that sum
    """

    chain: Chain
    start: Floats
    end: Floats
    teams: Teams
    first: Floats = field(init=False)  # (teams,) s
    latest: Ints = field(init=False)  # (teams,) the rank's place that begins the first sum last

    def __post_init__(self) -> None:
        begins, at = self.chain.begins, self.chain.sums
        if at:
            arrives = self.start + begins.own[at[0]] * self.teams.factor + begins.common[at[0]]
            first, latest = self.teams.latest(arrives)
            object.__setattr__(self, "first", first)
            object.__setattr__(self, "latest", latest)

    def times(self, some: slice, columns: Columns) -> PlacedTimes:
        teams, begins = self.teams, self.chain.begins
        column = np.arange(len(self.start))[columns]
        team = column // teams.width
        factor, end = teams.factor[column], self.end[column]
        from_, to, _ = some.indices(len(self.chain.parts))
        own, slow, common, behind = (values[from_ : to + 1, np.newaxis] for values in begins)
        begin = self.start[column] + own * factor + common
        if self.chain.sums:
            summed = self.first[team] + own * factor + slow * teams.most[team] + common
            begin = np.where(behind, summed, begin)
        # The end was computed in one sum, so that the last digits may differ.
        begin = np.minimum(begin, end)
        if to == len(self.chain.parts):
            begin[-1] = end
        last = np.broadcast_to(column, (to - from_, len(column)))
        if self.chain.sums:
            last = self._last(from_, to, column, team)
        sent = np.repeat(self.chain.sent[from_:to, np.newaxis], len(column), axis=1)
        return PlacedTimes(begin[:-1], begin[1:], sent, teams.ranks[last])

    @property
    def count(self) -> int:
        return len(self.chain.parts)

    def _last(self, from_: int, to: int, column: Ints, team: Ints) -> Ints:
        """Return the place of the rank that comes last to each operation."""
        begins, teams = self.chain.begins, self.teams
        waits, own, behind = (
            values[from_:to, np.newaxis] for values in (self.chain.waits, begins.own, begins.behind)
        )
        later = np.where(own > 0.0, teams.slowest[team], team * teams.width)
        found: Ints = np.where(waits, np.where(behind, later, self.latest[team]), column)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class PlacedOp:
    """One operation of one step, for all ranks of its role."""

    op: Op
    step: int
    ranks: Ints
    source: Source
    number: int = 0  # among the operations of its source

    @property
    def start(self) -> Floats:
        """Return when the operation begins: (ranks,) s."""
        found: Floats = self._every.start[0] if self.number else self.source.start
        return found

    @property
    def end(self) -> Floats:
        """Return when the operation ends: (ranks,) s."""
        is_last = self.number + 1 == self.source.count
        found: Floats = self.source.end if is_last else self._every.end[0]
        return found

    @property
    def sent(self) -> Floats:
        """Return the bytes that each rank hands to MPI: (ranks,)."""
        found: Floats = self._every.sent[0]
        return found

    @property
    def _every(self) -> PlacedTimes:
        return self.source.times(slice(self.number, self.number + 1), EVERY)


def by_source(placed: Sequence[PlacedOp]) -> Iterator[list[PlacedOp]]:
    """Group what was placed at once."""
    for _, some in groupby(placed, key=lambda p: id(p.source)):
        yield [*some]
