"""The ring all-reduce: least bytes, most rounds."""

from collections.abc import Callable, Iterator

import numpy as np

from commsched.errors import CommschedError
from commsched.machine.model import Group
from commsched.schedule.circles import (
    Circles,
    circles,
    everyone,
    of_ranks,
    ring_all_gather,
    ring_reduce_scatter,
)
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


@COLLECTIVES.add("ring")
def ring(group: Group) -> Schedule:
    """Reduce-scatter, then all-gather, each once around a ring that visits node after node.

    2 (p - 1) rounds; every rank sends and receives 2 (p - 1) / p of the tensor, the least possible.
    Good for large tensors on few ranks or equal links: latency grows with p, bytes do not.
    Source: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", JPDC 69(2), 2009.
    """
    return of_ranks("ring", Goal.ALL_REDUCE, everyone(group), _rounds)


def by_number(group: Group) -> Schedule:
    """Make the ring in the order of the ranks, like a library that knows of no nodes.

    If ranks fill node after node, it equals `ring`. If ranks are dealt out to the nodes in turn,
    every hop leaves its node, and all ranks of a node share its ports.
    """
    order = np.arange(group.size)[np.newaxis]
    return of_ranks("ring:ranks", Goal.ALL_REDUCE, circles(order, order, order + 1), _rounds)


@COLLECTIVES.family("ring:nodes", listed=False)
def ordered(parameters: list[str]) -> Callable[[Group], Schedule]:
    """Read `ring:nodes` or `ring:ranks`; planners try only the first unless asked."""
    orders = {"nodes": ring, "ranks": by_number}
    if len(parameters) != 1 or parameters[0] not in orders:
        raise CommschedError(f"order {':'.join(parameters)!r}; allowed: {', '.join(orders)}")
    return orders[parameters[0]]


def _rounds(on: Circles) -> Iterator[Round]:
    yield from ring_reduce_scatter(on)
    yield from ring_all_gather(on, merged=on.places)
