"""The ring reduce-scatter: the first half of the ring all-reduce."""

from commsched.machine.model import Group
from commsched.schedule.circles import everyone, of_ranks, ring_reduce_scatter
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("reduce-scatter")
def reduce_scatter(group: Group) -> Schedule:
    """Sum block r around a ring that visits node after node and ends at rank r.

    p - 1 rounds; every rank sends and receives (p - 1) / p of the tensor, the least possible. Good
    for sharded optimizers and as the first phase of a method.
    Source: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009.
    """
    return of_ranks("reduce-scatter", Goal.REDUCE_SCATTER, everyone(group), ring_reduce_scatter)
