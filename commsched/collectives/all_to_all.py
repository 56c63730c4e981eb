"""The rotated all-to-all: every rank has one block for every other rank."""

import numpy as np

from commsched.machine.model import Group
from commsched.schedule.circles import everyone, rotated_all_to_all
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("all-to-all")
def all_to_all(group: Group) -> Schedule:
    """Send block s * p + d from rank s to rank d, in round k to the k-th rank ahead: no hot spot.

    p - 1 rounds that do not wait for each other; every rank sends and receives p - 1 blocks, each
    1 / p of what one rank holds. Good for packets that only their receiver can combine.
    Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 19(1), 2005 (pairwise exchange).
    """
    p, on = group.size, everyone(group)
    return Schedule(
        name="all-to-all",
        goal=Goal.ALL_TO_ALL,
        ranks=p,
        blocks=p * p,
        rounds=lambda: rotated_all_to_all(on, np.arange(p), 0),
    )
