"""The end of a broken job: say why, let the launcher read it, end all ranks."""

import faulthandler
import fcntl
import os
import stat
import sys
import termios
import time
import traceback

from mpi4py import MPI

from commsched.errors import Agreed, CommschedError
from commsched.run.job.deadlines import deadlines
from commsched.terminal import printable


def say(text: str) -> None:
    """Print lines for people, each with the program's name, in one write."""
    sys.stderr.write("".join(f"commsched: {printable(line)}\n" for line in text.splitlines()))
    sys.stderr.flush()


def end_all(error: BaseException, comm: MPI.Intracomm) -> None:
    """End all ranks of the job because of an error on this one."""
    say_why(error, comm.rank)
    abort(comm)


def say_why(error: BaseException, rank: int) -> None:
    """Say why this rank ends the job; of an error that all ranks raise, rank 0 speaks alone."""
    if not isinstance(error, Agreed):
        say(f"rank {rank}: {describe(error)}")
    elif rank == 0:
        say(describe(error))
    else:
        time.sleep(deadlines().grace)  # rank 0 ends the job


def abort(comm: MPI.Intracomm) -> None:
    """End all ranks; this rank also if MPI waits at its end for ranks that cannot come."""
    be_heard()
    # A thread of C: MPI_Abort may wait while it holds the interpreter.
    silent = os.open(os.devnull, os.O_WRONLY)
    faulthandler.dump_traceback_later(deadlines().hard, exit=True, file=silent)
    comm.Abort(2)


def be_heard() -> None:
    """Wait until the launcher has read this rank's output; it stops reading after an abort."""
    out = 2  # even if a test has replaced sys.stderr
    if not stat.S_ISFIFO(os.fstat(out).st_mode):
        return
    end, unread = time.monotonic() + deadlines().heard, bytearray(4)
    while time.monotonic() < end:
        fcntl.ioctl(out, termios.FIONREAD, unread)
        if not any(unread):
            return
        time.sleep(0.001)


def describe(error: BaseException) -> str:
    """Return one sentence for an error that users can fix, the traceback for our bugs."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, CommschedError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()
