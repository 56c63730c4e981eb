"""Ranks in circles: the ring and rotated building blocks, over many disjoint circles at once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from commsched.arrays import Ints
from commsched.machine.model import Group
from commsched.schedule.nesting import tree_order
from commsched.schedule.rounds import Goal, Round, RoundRows, Schedule


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Circles:
    """Disjoint circles of equally many ranks; each place of a circle owns a run of blocks.

    The tables hold place 0 of every circle, then place 1, ..., and then all places again, so that
    the run of the place k further on is a slice for every k and a round costs no copy.
    """

    places: int  # ranks in one circle
    circles: int
    ranks: Ints  # (2 * places * circles,)
    first: Ints  # (2 * places * circles,) the run that this place owns is [first, stop)
    stop: Ints  # (2 * places * circles,)
    src: Ints  # (places * circles,) every rank
    dst: Ints  # (places * circles,) its successor

    def ahead(self, table: Ints, places: int) -> Ints:
        """Return a view of `table` for the place `places` further on, 0 <= places <= all."""
        start = places * self.circles
        return table[start : start + self.places * self.circles]

    def round(
        self, dst: Ints, places: int, add: bool, merged: int, waits: int | None = None
    ) -> Round:
        """Let every rank send the run that the place `places` further on owns."""
        start = places * self.circles
        end = start + len(self.src)
        rows = RoundRows(self.first, self.stop, start)
        first, stop = self.first[start:end], self.stop[start:end]
        return Round(self.src, dst, first, stop, add, merged, waits, rows)


def circles(members: Sequence[Sequence[int]] | Ints, first: Ints, stop: Ints) -> Circles:
    """Build tables of circles. members, first, stop: (circles, places); rows are disjoint ranks."""
    table = np.asarray(members, dtype=np.int64)
    assert table.shape == first.shape == stop.shape
    ranks, firsts, stops = (_doubled(x) for x in (table, first, stop))
    count, places = table.shape
    return Circles(
        places=places,
        circles=count,
        ranks=ranks,
        first=firsts,
        stop=stops,
        src=ranks[: places * count],
        dst=ranks[count : count + places * count],
    )


def _doubled(table: Ints) -> Ints:
    doubled = np.tile(table.T.astype(np.int64).ravel(), 2)
    doubled.flags.writeable = False
    return doubled


def everyone(group: Group) -> Circles:
    """Make one circle through the group, node after node, in which rank r owns block r.

    Only one link of the circle enters and one leaves each node, wherever its ranks are placed.
    """
    order = tree_order(group)[np.newaxis]
    return circles(order, order, order + 1)


def of_ranks(
    name: str, goal: Goal, on: Circles, rounds: Callable[[Circles], Iterator[Round]]
) -> Schedule:
    """Make a schedule of one circle, in which rank r owns block r; `rounds` are those of `on`."""
    return Schedule(
        name=name,
        goal=goal,
        ranks=on.places,
        blocks=on.places,
        rounds=lambda: rounds(on),
        owner=np.arange(on.places, dtype=np.int64),
    )


def ring_reduce_scatter(on: Circles, merged: int = 1) -> Iterator[Round]:
    """Sum around each circle until every rank has the sum of the blocks it owns.

    places - 1 rounds; each sends one owned run per rank. At the start every rank sums `merged`.
    """
    for k in range(on.places - 1):
        yield on.round(on.dst, on.places - 1 - k, True, merged * (k + 1))


def ring_all_gather(on: Circles, merged: int = 1) -> Iterator[Round]:
    """Pass every owned run around its circle until each rank of the circle has it.

    places - 1 rounds; each sends one owned run per rank, which sums `merged` ranks.
    """
    for k in range(on.places - 1):
        yield on.round(on.dst, on.places - k, False, merged)


def rotated_reduce_scatter(on: Circles, merged: int = 1, waits: int = 0) -> Iterator[Round]:
    """Send each run straight to its owner: in round k to the k-th rank ahead, so no rank queues.

    places - 1 rounds; each sends one owned run per rank, as the rank had it after `waits` rounds.
    """
    for k in range(1, on.places):
        yield on.round(on.ahead(on.ranks, k), k, True, merged, waits)


def rotated_all_gather(on: Circles, merged: int = 1, waits: int = 0) -> Iterator[Round]:
    """Send each rank's own run straight to all: in round k to the k-th rank ahead, without queues.

    places - 1 rounds; each sends one owned run per rank, which sums `merged` ranks after `waits`
    rounds.
    """
    for k in range(1, on.places):
        yield on.round(on.ahead(on.ranks, k), 0, False, merged, waits)


def rotated_all_to_all(on: Circles, place: Ints, circle: Ints | int) -> Iterator[Round]:
    """Send each block straight to its receiver: in round k to the k-th place ahead.

    `circle` numbers the circle of each rank, `place` its place in it; blocks (circle, from, to).
    """
    to = place[on.ranks]
    block = (circle * on.places + place)[on.src] * on.places
    for k in range(1, on.places):
        first = block + on.ahead(to, k)
        yield Round(on.src, on.ahead(on.ranks, k), first, first + 1, False, 1, waits=0)
