"""Rings along each axis of a table of ranks, for collectives of several levels."""

import math
from collections.abc import Iterator

import numpy as np

from commsched.arrays import Ints
from commsched.machine.model import Group
from commsched.schedule.circles import Circles, circles, ring_all_gather, ring_reduce_scatter
from commsched.schedule.nesting import nested, tree_order
from commsched.schedule.rounds import Goal, Round, Schedule


def by_levels(name: str, table: Ints) -> Schedule:
    """Sum along the last axis of a table of all ranks first, then along the others, and back.

    The rank at (c1, ..., cn), the last axis first, owns block ((c1 K2 + c2) K3 + ...) + cn, and
    after i axes the run of blocks that begin with its first i places: one run per move.
    """
    rings = axis_rings(table)
    return Schedule(
        name=name,
        goal=Goal.ALL_REDUCE,
        ranks=table.size,
        blocks=table.size,
        rounds=lambda: _rounds(rings, table.size),
    )


def axis_rings(table: Ints) -> list[Circles]:
    """Return the circles along each axis, the last axis first; each place owns a run of blocks."""
    found, run = [], table.size
    first = np.zeros(table.shape, np.int64)
    for axis in reversed(range(table.ndim)):
        places = table.shape[axis]
        run //= places
        shape = [1] * table.ndim
        shape[axis] = places
        first = first + (np.arange(places) * run).reshape(shape)
        rows = [np.moveaxis(x, axis, -1).reshape(-1, places) for x in (table, first, first + run)]
        found.append(circles(*rows))
    return found


def torus_table(group: Group) -> Ints:
    """Lay a group out along its torus, an axis per direction, or as the most square grid."""
    if any(span.torus for span in group.levels):
        return nested(group, grids=True)
    width = next(k for k in range(math.isqrt(group.size), 0, -1) if group.size % k == 0)
    return tree_order(group).reshape(-1, width)


def _rounds(rings: list[Circles], ranks: int) -> Iterator[Round]:
    for k, ring in enumerate(rings):
        yield from ring_reduce_scatter(ring, merged=math.prod(on.places for on in rings[:k]))
    for ring in reversed(rings):
        yield from ring_all_gather(ring, merged=ranks)
