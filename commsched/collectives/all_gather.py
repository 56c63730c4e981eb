"""The ring all-gather: every rank forwards what it received last."""

from commsched.machine.model import Group
from commsched.schedule.circles import everyone, of_ranks, ring_all_gather
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("all-gather")
def all_gather(group: Group) -> Schedule:
    """Pass block r of rank r around a ring that visits node after node.

    p - 1 rounds; every rank sends and receives (p - 1) blocks, the least possible. Good for
    packets that cannot be added (sparse, quantised) and as the second half of an all-reduce.
    Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 19(1), 2005.
    """
    return of_ranks("all-gather", Goal.ALL_GATHER, everyone(group), ring_all_gather)
