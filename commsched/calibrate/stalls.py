"""The measured distribution of the time of equal work over many repeats, for the law of stalls."""

import numpy as np
from mpi4py import MPI

from commsched.machine.model import Machine
from commsched.machine.stalls import Stalls, fitted
from commsched.run.engine.probe import sleeping_barrier
from commsched.run.job.clock import now
from commsched.units import significant

PIECE = 2e-3  # s of work
FEWEST = 100  # repeats that show a distribution
IN_CACHE = 2**14  # elements


def measure(comm: MPI.Intracomm, machine: Machine, budget: float) -> tuple[Stalls, ...]:
    """Return the laws of stalls, on rank 0; (), if the budget in s is too short for a law.

    All ranks work at once, so that stalls of a whole node are seen. On nodes with fewer cores than
    ranks they work one after another, because sharing a core is no stall of the machine.
    """
    crowded = 0 < machine.cores < max(machine.ranks_of_node)
    turns = comm.size if crowded else 1
    count = int(budget / turns / PIECE)
    if count < FEWEST:
        return ()
    seconds = np.zeros(count)
    for turn in range(turns):
        sleeping_barrier(comm)
        if turns == 1 or turn == comm.rank:
            seconds = _pieces(count)
    sleeping_barrier(comm)
    found = np.zeros((comm.size, count)) if comm.rank == 0 else None
    comm.Gather(seconds, found, root=0)
    if found is None:
        return ()
    nodes = tuple(range(comm.size)) if crowded else machine.node_of_rank
    return fitted(found.T, nodes, significant(float(np.median(found))))


def _pieces(count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the seconds of equal pieces of work, one after the other."""
    values, loops = np.ones(IN_CACHE, np.float32), 1
    while _piece(values, loops) < PIECE:
        loops *= 2
    return np.array([_piece(values, loops) for _ in range(count)])


def _piece(values: np.ndarray[tuple[int], np.dtype[np.float32]], loops: int) -> float:
    start = now()
    for _ in range(loops):
        np.multiply(values, np.float32(1.0), out=values)
    return now() - start
