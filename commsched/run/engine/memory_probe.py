"""The probe of the memory bandwidth that the ranks of a node share."""

import socket

import numpy as np
from mpi4py import MPI

from commsched.run.engine.probe import sleeping_barrier
from commsched.run.job import agree
from commsched.run.job.clock import now

COPIED = 32 * 2**20  # B of each copy: more than a rank's share of the caches
LEAST = 3  # copies; the first one is left out


def ranks_of_this_node(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return the communicator of the ranks on this rank's host; all ranks call it."""
    hosts = agree.gather_text(socket.gethostname(), comm)
    found = comm.Split(hosts.index(hosts[comm.rank]), comm.rank)
    assert isinstance(found, MPI.Intracomm)
    return found


def shared_memory(comm: MPI.Intracomm, seconds: float) -> tuple[tuple[float, float], ...]:
    """Return (ranks, B/s of each) for 1, 2, 4, ... and all ranks of a node that copy at once.

    The probe takes about `seconds`; the other ranks sleep. Read and written bytes count, as in
    STREAM's copy. Source: McCalpin, "Memory bandwidth and machine balance", 1995.
    """
    local = ranks_of_this_node(comm)
    most = int(agree.largest(local.size, comm))
    counts = sorted({2**i for i in range(most.bit_length())} | {most})
    source = np.ones(COPIED // 4, np.float32)
    target = np.empty_like(source)
    found: list[float] = []
    for count in counts:
        sleeping_barrier(comm)
        rate = _rate(source, target, seconds / len(counts)) if local.rank < count else 0.0
        rates = [each for each in agree.gather_numbers(rate, comm) if each]
        # More ranks cannot copy faster each: remove such noise.
        found.append(min([float(np.mean(rates)), *found]))
    local.Free()
    return tuple(zip(map(float, counts), found, strict=True))


def _rate(source: np.ndarray, target: np.ndarray, seconds: float) -> float:
    """Return the median B/s of copies for some seconds."""
    times, end = [now()], now() + seconds
    while len(times) <= LEAST or times[-1] < end:
        np.copyto(target, source)
        times.append(now())
    return 2 * source.nbytes / float(np.median(np.diff(times)[1:]))
