"""A schedule as lazily produced rounds of moves; pure data, independent of bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from commsched.arrays import Ints


class Goal(StrEnum):
    """Conditions before and after a schedule; `owner` is `Schedule.owner`.

    ALL_REDUCE: every rank holds a contribution to every block -> every rank holds every sum.
    REDUCE_SCATTER: every rank holds a contribution to every block -> rank owner[b] holds sum b.
    ALL_GATHER: rank owner[b] holds block b -> every rank holds every block.
    ALL_TO_ALL: block s*p + d is held by rank s -> it is held by rank d.
    BROADCAST: rank owner[b], equal for all b, holds block b -> every rank holds every block.
    """

    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_GATHER = "all-gather"
    ALL_TO_ALL = "all-to-all"
    BROADCAST = "broadcast"


class RoundRows(NamedTuple):
    """Tables of runs that stay the same objects over rounds; a round takes m rows of them.

    Move i of the round carries [first[start + i], stop[start + i]). A reader can derive its own
    tables once, and slice them.
    """

    first: Ints  # (rows,)
    stop: Ints  # (rows,)
    start: int


class Round(NamedTuple):
    """Moves that may happen together: blocks [first[i], stop[i]) go from src[i] to dst[i].

    In one round a rank sends at most one move and receives at most one. A send carries what its
    rank held before the round. There is no barrier between rounds: a move waits only for its own
    data. `merged` = how many ranks' contributions each carried block already sums (1 for a gather).
    Generators reuse the same `src` and `dst` objects as long as the pattern stays, so that readers
    can cache what they derive from it.
    """

    src: Ints  # (m,)
    dst: Ints  # (m,)
    first: Ints  # (m,)
    stop: Ints  # (m,)
    add: bool  # whether the receiver adds the blocks to its own; otherwise it replaces them
    merged: int | Ints  # scalar or (m,)
    # Senders wait for their receives in the first `waits` rounds; 0: none; None: all rounds before
    # this one. A number other than 0 first appears in the round of that number.
    waits: int | None = None
    rows: RoundRows | None = None  # tables that `first` and `stop` are slices of


def unseen() -> Iterator[Round]:
    """Stand for the rounds of a collective that the MPI library routes."""
    raise AssertionError("the MPI's own collectives have no rounds to see")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A route over ranks 0..ranks-1 and blocks 0..blocks-1."""

    name: str
    goal: Goal
    ranks: int
    blocks: int
    rounds: Callable[[], Iterator[Round]] = unseen
    shared: bool = False  # whether several ranks make equal sums, and would all keep the losses
    apt: bool = True  # whether it suits the machine's shape; planners skip other schedules
    owner: Ints | None = field(default=None, compare=False)  # (blocks,), if the goal needs it

    @property
    def library(self) -> bool:
        """Tell whether the MPI library's own collective stands for the rounds."""
        return self.rounds is unseen
