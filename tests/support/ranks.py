"""The ranks that run a test under MPI: all of the job, or a group of them beside others."""

import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from commsched.run.job import agree

WORLD: MPI.Intracomm = MPI.COMM_WORLD
in_groups = False


def split(sizes: Sequence[int]) -> None:
    """Cut the job into groups of these sizes; tests that are imported from now on run in them.

    Ranks that come early sleep: those that wait in MPI would take the cores of those that work.
    """
    global WORLD, in_groups
    assert sum(sizes) == MPI.COMM_WORLD.size
    everyone = MPI.COMM_WORLD.Ibarrier()
    while not everyone.Test():
        time.sleep(0.05)
    colour = np.repeat(range(len(sizes)), sizes)[MPI.COMM_WORLD.rank]
    WORLD, in_groups = MPI.COMM_WORLD.Split(int(colour)), True


def together(problems: Sequence[str]) -> None:
    """Fail on all ranks with what any rank found, once nobody communicates any more.

    An empty text is no problem.
    """
    texts = agree.gather_text("\n".join(filter(None, problems)), WORLD)
    assert not any(texts), "\n".join(f"rank {r}: {t}" for r, t in enumerate(texts) if t)
