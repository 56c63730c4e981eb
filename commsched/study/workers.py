"""The workers that plan a study's cells: this process, child processes, or ranks of mpiexec."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import cast

from commsched.errors import CommschedError
from commsched.run.job.launcher import expected_size
from commsched.run.job.lifeline import signalled_with_parent


@contextmanager
def processes(jobs: int) -> Iterator[Executor]:
    """Start processes, which inherit plug-ins and end with this one, however it ends."""
    if jobs < 1:
        raise CommschedError(f"--jobs must be at least 1, got {jobs}")
    before = set(multiprocessing.active_children())
    forked = multiprocessing.get_context("fork")
    parent = (os.getpid(),)
    executor = ProcessPoolExecutor(jobs, mp_context=forked, initializer=_begin, initargs=parent)
    try:
        yield executor
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()  # what it plans now is planned again
        if isinstance(error, BrokenProcessPool):
            raise CommschedError(
                "a process that planned was killed, perhaps as memory ran out; the same command"
                " goes on with the study, and needs less memory with fewer --jobs"
            ) from None
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Make this process end with its parent; ignore interrupts, which the parent handles."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signalled_with_parent(signal.SIGKILL)()
    if os.getppid() != parent:  # the parent has ended; in a container it may have number 1
        os._exit(1)


def of_ranks() -> bool:
    """Tell whether a launcher has started this process as one of several ranks."""
    return (expected_size() or 1) > 1


@contextmanager
def ranks() -> Iterator[tuple[Executor | None, int]]:
    """Yield an executor on the other ranks of mpiexec, and their number; None on those ranks."""
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    from commsched.run.job.agree import check_launcher

    check_launcher()
    comm = MPI.COMM_WORLD
    before = signal.getsignal(signal.SIGINT)
    if comm.rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 ends the study, and them
    try:
        with MPICommExecutor(comm, root=0) as found:
            executor = cast("Executor | None", found)
            try:
                yield executor, comm.size - 1
            except BaseException:
                if executor is not None:
                    executor.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        signal.signal(signal.SIGINT, before)
