"""The direct reduce-scatter: every rank sends its share straight to the owner."""

from commsched.machine.model import Group
from commsched.schedule.circles import everyone, of_ranks, rotated_reduce_scatter
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("reduce-scatter-direct")
def reduce_scatter_direct(group: Group) -> Schedule:
    """Send block r straight to rank r, who adds; in round k rank r sends to rank r + k.

    p - 1 rounds that do not wait for each other; every rank sends and receives (p - 1) / p of the
    tensor. Good for packets with expensive or lossy merges: each is merged once, by its owner.
    Source: Li & Hoefler, "Near-optimal sparse allreduce", PPoPP 2022 (split and reduce); Wang et
    al., "Zen", OSDI 2025 (push).
    """
    on = everyone(group)
    return of_ranks("reduce-scatter-direct", Goal.REDUCE_SCATTER, on, rotated_reduce_scatter)
