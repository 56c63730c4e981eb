"""The communicators of a plan: one for each exchange stream and team of ranks."""

from mpi4py import MPI

from commsched.plan.model import Launch, Plan
from commsched.program.registry import STRATEGIES

Channel = tuple[str, str, tuple[int, ...], int]  # stream, team, ranks, number of teams
Communicators = dict[Channel, MPI.Intracomm]
EVERYONE: Channel = ("between", "all", (), 1)  # for decisions of all ranks


def communicators(
    plan: Plan, comm: MPI.Intracomm, known: Communicators | None = None
) -> Communicators:
    """Make a communicator per exchange stream and team of ranks, in equal order on every rank.

    Communicators in `known` are reused.
    """
    found = dict(known or {})
    for launch in plan.launches:
        key = channel(launch)
        if key not in found:
            mine = plan.group_of(launch, comm.rank)
            color = MPI.UNDEFINED if mine is None else mine.ranks[0]
            split = comm.Split(color, 0 if mine is None else mine.ranks.index(comm.rank))
            assert isinstance(split, MPI.Intracomm)
            found[key] = split
    if STRATEGIES[plan.strategy].decides and EVERYONE not in found:
        found[EVERYONE] = comm.Dup()
    return found


def channel(launch: Launch) -> Channel:
    """Return the key of a launch's communicator."""
    return launch.stream, launch.among, launch.group, launch.split
