"""Recursive halving and doubling: least bytes in few rounds."""

from collections.abc import Iterator

import numpy as np

from commsched.machine.model import Group
from commsched.schedule.fold import Fold, fold, fold_in, fold_out, partial_sums
from commsched.schedule.nesting import tree_order
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


@COLLECTIVES.add("halving-doubling")
def halving_doubling(group: Group) -> Schedule:
    """Reduce-scatter by halving the vector with ever more distant partners, then gather back.

    q = the largest power of two up to p = blocks. 2 log2 q rounds; every active rank sends
    2 (q - 1) / q of the tensor, half of it to its neighbour; if p > q, two more rounds fold the
    other ranks in and out, each with the whole tensor. Good for middle-sized and large tensors on
    many ranks, best if p is a power of two.
    Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
    """
    on = fold(tree_order(group))
    return Schedule(
        name="halving-doubling",
        goal=Goal.ALL_REDUCE,
        ranks=group.size,
        blocks=len(on.active),
        rounds=lambda: _rounds(on),
    )


def _rounds(on: Fold) -> Iterator[Round]:
    q = len(on.active)
    yield from fold_in(on, blocks=q)
    place = np.arange(q)
    distances = [1 << k for k in range(q.bit_length() - 1)]
    partners = [on.active[place ^ distance] for distance in distances]
    low, half = np.zeros_like(place), q
    for distance, partner in zip(distances, partners, strict=True):
        half //= 2
        upper = (place & distance) // distance * half  # 0 if the rank keeps the lower half
        give, low = low + half - upper, low + upper
        yield Round(on.active, partner, give, give + half, True, partial_sums(on, distance))
    for distance, partner in zip(distances[::-1], partners[::-1], strict=True):
        yield Round(on.active, partner, low, low + half, False, int(on.weight.sum()))
        low = np.minimum(low, low[place ^ distance])
        half *= 2
    yield from fold_out(on, blocks=q)
