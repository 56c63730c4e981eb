"""The direct all-reduce: everybody sends straight to the owner of each block."""

from collections.abc import Iterator

from commsched.machine.model import Group
from commsched.schedule.circles import (
    Circles,
    everyone,
    of_ranks,
    rotated_all_gather,
    rotated_reduce_scatter,
)
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


@COLLECTIVES.add("direct")
def direct(group: Group) -> Schedule:
    """Send every block to its owner, who adds and sends the sum to everybody.

    2 (p - 1) rounds whose messages do not wait for each other within a half; every rank sends and
    receives 2 (p - 1) / p of the tensor. In round k rank r sends to rank r + k, so that there is no
    hot spot. Good for full-bisection networks and for lossy packets, which are merged only once.
    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005 (pairwise exchange); Renggli et al.,
    "SparCML", SC 2019 (split all-gather).
    """
    return of_ranks("direct", Goal.ALL_REDUCE, everyone(group), _rounds)


def _rounds(on: Circles) -> Iterator[Round]:
    yield from rotated_reduce_scatter(on)
    yield from rotated_all_gather(on, merged=on.places, waits=on.places - 1)
