"""The ranks that run a test under MPI: all of the job, or a group of them beside others."""

import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from commsched.run.job import agree

WORLD: MPI.Intracomm = MPI.COMM_WORLD
in_groups = False


def split(sizes: Sequence[int]) -> None:
    """Cut the job into groups of these sizes; tests that are imported from now on run in them."""
    global WORLD, in_groups
    assert sum(sizes) == MPI.COMM_WORLD.size
    meet(MPI.COMM_WORLD)
    colour = np.repeat(range(len(sizes)), sizes)[MPI.COMM_WORLD.rank]
    WORLD, in_groups = MPI.COMM_WORLD.Split(int(colour)), True


def meet(comm: MPI.Intracomm) -> None:
    """Wait for all ranks; those that come early sleep, and leave the cores to those that work."""
    everyone, pause = comm.Ibarrier(), 1e-4
    while not everyone.Test():
        time.sleep(pause)
        pause = min(2 * pause, 0.02)  # s


def together(problems: Sequence[str]) -> None:
    """Fail on all ranks with what any rank found, once nobody communicates any more.

    An empty text is no problem.
    """
    meet(WORLD)
    texts = agree.gather_text("\n".join(filter(None, problems)), WORLD)
    assert not any(texts), "\n".join(f"rank {r}: {t}" for r, t in enumerate(texts) if t)
