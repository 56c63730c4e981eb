"""The end of a broken job: print the reason, let the launcher read it, end all ranks."""

import faulthandler
import os
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING

from commsched.errors import Agreed, CommschedError
from commsched.run.job import lifeline
from commsched.run.job.deadlines import deadlines
from commsched.run.job.launcher import environment_rank
from commsched.run.job.witness import be_heard

if TYPE_CHECKING:
    from mpi4py import MPI
from commsched.terminal import printable

STATUS = 2  # with which a broken job ends


def say(text: str) -> None:
    """Print lines for people, each with the program's name, in one write."""
    sys.stderr.write("".join(f"commsched: {printable(line)}\n" for line in text.splitlines()))
    sys.stderr.flush()


def end_all(error: BaseException, comm: "MPI.Intracomm") -> None:
    """End all ranks of the job because of an error on this one."""
    say_why(error, comm.rank)
    abort(comm)


def say_why(error: BaseException, rank: int) -> None:
    """Print why this rank ends the job; if all ranks raise the error, only rank 0 prints it."""
    if rank and isinstance(error, KeyboardInterrupt):
        time.sleep(deadlines().grace)  # an interrupt of all ranks is told once: rank 0 ends the job
    if not isinstance(error, Agreed):
        say(f"rank {rank}: {describe(error)}")
    elif rank == 0:
        say(describe(error))
    else:
        time.sleep(deadlines().grace)  # rank 0 ends the job


def fail(error: BaseException, rank: int) -> None:
    """End the job because of an error on this rank, whether MPI has begun or not.

    Rank 0 prints first: if all ranks fail equally, it ends the others before they print.
    """
    if rank:
        time.sleep(deadlines().grace)
    say(f"rank {rank} on host {socket.gethostname()}: {describe(error)}")
    known = sys.modules.get("mpi4py.MPI")
    if known is not None and known.Is_initialized() and not known.Is_finalized():
        abort(known.COMM_WORLD)
    be_heard(deadlines().heard)
    lifeline.end_job()


def abort(comm: "MPI.Intracomm") -> None:
    """End all ranks; also this one if MPI waits at its end for lost ranks."""
    be_heard(deadlines().heard)
    world = sys.modules["mpi4py.MPI"].COMM_WORLD
    if world.size == 1 and environment_rank() is None:
        os._exit(STATUS)  # nobody else is to be ended, and MPI_Abort would add a line of its own
    # MPICH's MPI_Abort calls exit() on the other ranks; their threads crash in unloaded libraries.
    lifeline.end_job()
    # In a thread of C, because MPI_Abort may wait while it holds the interpreter.
    silent = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(deadlines().hard, exit=True, file=silent)
    comm.Abort(STATUS)
    time.sleep(deadlines().hard)  # some MPI_Aborts return before the launcher ends this rank


def describe(error: BaseException) -> str:
    """Return one sentence for an error that users can fix, and the traceback for our bugs."""
    if isinstance(error, KeyboardInterrupt):
        return str(error) or "interrupted"
    if isinstance(error, CommschedError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()
