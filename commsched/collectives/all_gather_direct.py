"""The direct all-gather: every rank sends only its own block."""

from commsched.machine.model import Group
from commsched.schedule.circles import everyone, of_ranks, rotated_all_gather
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("all-gather-direct")
def all_gather_direct(group: Group) -> Schedule:
    """Send block r of rank r straight to everybody, to rank r + k in round k.

    p - 1 rounds that do not wait for each other; every rank sends its own block p - 1 times and
    receives p - 1 blocks. Good if packets differ much in size: a large packet delays its own rank,
    not a chain of ranks.
    Source: Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in
    MPICH", IJHPCA 19(1), 2005 (pairwise exchange).
    """
    return of_ranks("all-gather-direct", Goal.ALL_GATHER, everyone(group), rotated_all_gather)
