"""The binomial tree: a reduction to one root and a broadcast from it."""

from collections.abc import Iterator

import numpy as np

from commsched.arrays import Ints
from commsched.machine.model import Group
from commsched.schedule.fold import same_or_each
from commsched.schedule.nesting import tree_order
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


@COLLECTIVES.add("tree")
def tree(group: Group) -> Schedule:
    """Add up a binomial tree to its root, then broadcast down the same tree.

    2 ceil(log2 p) rounds; p - 1 whole tensors travel up and p - 1 down, and the root receives and
    sends ceil(log2 p) of them. Good for small tensors if p is not a power of two, and for lossy
    merging: only one rank makes each sum.
    Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 19(1), 2005.
    """
    order = tree_order(group)
    return Schedule(
        name="tree", goal=Goal.ALL_REDUCE, ranks=group.size, blocks=1, rounds=lambda: _rounds(order)
    )


def _rounds(order: Ints) -> Iterator[Round]:
    p = len(order)
    distances = [1 << k for k in range((p - 1).bit_length())]
    for distance in distances:
        child = np.arange(distance, p, 2 * distance)
        first = np.zeros_like(child)
        merged = same_or_each(np.minimum(distance, p - child))
        yield Round(order[child], order[child - distance], first, first + 1, True, merged)
    for distance in reversed(distances):
        child = np.arange(distance, p, 2 * distance)
        first = np.zeros_like(child)
        yield Round(order[child - distance], order[child], first, first + 1, False, p)
