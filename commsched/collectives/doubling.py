"""Recursive doubling: fewest rounds, most bytes."""

from collections.abc import Iterator

import numpy as np

from commsched.machine.model import Group
from commsched.schedule.fold import Fold, fold, fold_in, fold_out, partial_sums
from commsched.schedule.nesting import tree_order
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


@COLLECTIVES.add("doubling")
def doubling(group: Group) -> Schedule:
    """Swap whole sums with a partner at distance 1, 2, 4, ... until everyone has everything.

    q = the largest power of two up to p. log2 q rounds in which every active rank sends the whole
    tensor; if p > q, two more rounds fold the other ranks in and out. Good for small tensors, whose
    time is latency, and for sparse packets that hardly grow when merged.
    Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 19(1), 2005; for sparse packets Renggli et al., "SparCML", SC 2019.
    """
    on = fold(tree_order(group))
    return Schedule(
        name="doubling",
        goal=Goal.ALL_REDUCE,
        ranks=group.size,
        blocks=1,
        rounds=lambda: _rounds(on),
        shared=True,
    )


def _rounds(on: Fold) -> Iterator[Round]:
    yield from fold_in(on, blocks=1)
    place = np.arange(len(on.active))
    first = np.zeros_like(place)
    distance = 1
    while distance < len(place):
        partner = on.active[place ^ distance]
        yield Round(on.active, partner, first, first + 1, True, partial_sums(on, distance))
        distance *= 2
    yield from fold_out(on, blocks=1)
