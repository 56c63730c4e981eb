"""The ring reduce-scatter: the first half of the ring all-reduce."""

import numpy as np

from commsched.machine.model import Group
from commsched.schedule.circles import everyone, ring_reduce_scatter
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
    p = group.size
    on = everyone(group)
    return Schedule(
        name="reduce-scatter",
        goal=Goal.REDUCE_SCATTER,
        ranks=p,
        blocks=p,
        rounds=lambda: ring_reduce_scatter(on),
        owner=np.arange(p, dtype=np.int64),
    )
