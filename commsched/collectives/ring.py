"""The ring all-reduce: least bytes, most rounds."""

from itertools import chain

from commsched.collectives import COLLECTIVES
from commsched.collectives.circle import everyone, ring_all_gather, ring_reduce_scatter
from commsched.machine import Group
from commsched.schedule import Goal, Schedule


@COLLECTIVES.add("ring")
def ring(group: Group) -> Schedule:
    """Reduce-scatter, then all-gather, each once around a ring that visits node after node.

    2 (p - 1) rounds; every rank sends and receives 2 (p - 1) / p of the tensor, the least possible.
    Good for large tensors on few ranks or equal links: latency grows with p, bytes do not.
    Source: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009.
    """
    p = group.size
    on = everyone(group)
    return Schedule(
        name="ring",
        goal=Goal.ALL_REDUCE,
        ranks=p,
        blocks=p,
        rounds=lambda: chain(ring_reduce_scatter(on), ring_all_gather(on, merged=p)),
    )
