"""The roll call before MPI begins: ranks announce themselves; ranks 0 and 1 name missing ones.

MPI_Init waits silently for ranks that never call it. Hydra's mpiexec stores names for the ranks of
its job (publish_name and lookup_name of PMI 1), also across hosts: each rank publishes its own.
"""

import os
import select
import time

from commsched.errors import CommschedError
from commsched.run.job.deadlines import deadlines
from commsched.run.job.witness import process_stat, ranks_here
from commsched.units import seconds

ANSWER = 5.0  # s for the launcher to answer
PAUSE = 0.002  # s between questions
STARTED = 21  # field of proc(5)'s stat: clock ticks from the system's start to the process's


def answer(manager: int, rank: int, size: int, patience: float) -> None:
    """Announce this rank; rank 0 waits for all others, rank 1 for rank 0.

    The longer this rank took to start, the longer it waits for the others.
    """
    if not _ask(manager, f"cmd=publish_name service={_name(rank)} port={rank}"):
        return  # the launcher stores no names: the witness waits for MPI to begin
    wanted = [0] if rank == 1 else list(range(1, size)) if rank == 0 else []
    begin = time.monotonic()
    limit = min(patience, deadlines().arrival + deadlines().arrivals * _age())
    while wanted := [each for each in wanted if not _has_come(manager, each)]:
        if time.monotonic() - begin > limit:
            raise CommschedError(_missing(wanted, rank, limit))
        time.sleep(PAUSE)


def _name(rank: int) -> str:
    return f"commsched.{rank}"


def _has_come(manager: int, rank: int) -> bool:
    return _ask(manager, f"cmd=lookup_name service={_name(rank)}")


def _ask(manager: int, question: str) -> bool:
    """Ask the launcher; return whether its answer is yes."""
    os.write(manager, f"{question}\n".encode())
    text, end = b"", time.monotonic() + ANSWER
    while not text.endswith(b"\n"):
        if not select.select([manager], [], [], max(0.0, end - time.monotonic()))[0]:
            raise CommschedError("mpiexec does not answer; see whether its host is overloaded")
        text += os.read(manager, 4096)
    return b"rc=0" in text.split()


def _age() -> float:
    """Return the seconds since this process was started; 0 where the system does not tell."""
    ticks = int(process_stat(os.getpid(), STARTED))
    if not ticks:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _missing(ranks: list[int], rank: int, limit: float) -> str:
    here = {each for each, _ in ranks_here(os.getppid())}
    where = "this host" if ranks[0] in here else "another host"
    more = f", nor have {len(ranks) - 1} other ranks" if len(ranks) > 1 else ""
    return (
        f"rank {ranks[0]} on {where} has not started commsched within {seconds(limit)} after"
        f" rank {rank}{more}; see which command its host runs"
    )
