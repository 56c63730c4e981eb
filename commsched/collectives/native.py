"""The library's own all-reduce: MPI's, or NCCL's on GPUs."""

from commsched.machine.model import Group
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("native")
def native(group: Group) -> Schedule:
    """Leave the route to the library, which chooses by size, ranks and network.

    Its rounds are not visible: its price is measured, or that of the algorithm that `libraries`
    names. Good for dense tensors on a well-tuned library; the order of additions, and
    so the last bit, is the library's.
    Source: MPI: A Message-Passing Interface Standard, version 4.1, 2023, section 6.9.
    """
    return Schedule(name="native", goal=Goal.ALL_REDUCE, ranks=group.size, blocks=1)
