"""The tie between a rank and its job: neither outlives the other, even before MPI begins."""

import atexit
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from commsched.run.job.witness import ABORT, ENDS, MET, NOBODY, NOTE

PARENT_DIES = 1  # PR_SET_PDEATHSIG of prctl(2)
COMING = 5.0  # s for a witness to start; MPI begins meanwhile
ENDING = 5.0  # s for the process manager to end this rank
SCRIPT = Path(__file__).with_name("witness.py")

_witness: "subprocess.Popen[bytes] | None" = None


def signalled_with_parent(number: signal.Signals) -> Callable[[], None]:
    """Return a function that lets a new process get a signal when its parent dies in any way."""
    import ctypes  # only ranks and their starters need it

    prctl = getattr(ctypes.CDLL(None), "prctl", None)  # missing where the kernel is not Linux
    return lambda: prctl and prctl(PARENT_DIES, int(number))


def manager() -> int | None:
    """Return the descriptor of this rank's connection to Hydra; None under other launchers.

    Hydra is the launcher of MPICH, Intel MPI and MVAPICH. Other launchers themselves end a job and
    name the rank when a rank ends with an error before MPI begins.
    """
    number = os.environ.get("PMI_FD", "")
    with suppress(OSError):
        if number.isdecimal() and stat.S_ISSOCK(os.fstat(int(number)).st_mode):
            return int(number)
    return None


def tie(rank: int, patience: float, variables: Mapping[str, str]) -> None:
    """Let this rank end with its launcher; start a witness that reports if the rank is killed.

    The witness ends the job if MPI has not begun after `patience` s, or if a rank of this host has
    ended by then; see `met`. Launchers other than Hydra name killed ranks themselves.
    variables: the witness's environment, which does not make it a rank.
    """
    global _witness
    if _witness is not None:
        return
    signalled_with_parent(signal.SIGTERM)()
    descriptor = manager()
    told = NOBODY if descriptor is None else descriptor
    words = (rank, socket.gethostname(), os.getpid(), told, patience)
    _witness = subprocess.Popen(
        [sys.executable, "-I", "-S", str(SCRIPT), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=() if descriptor is None else (descriptor,),
        env=variables,
    )
    atexit.register(part)


def met() -> None:
    """Wait until the witness watches, and tell it that MPI has begun: a rank may now be killed."""
    if _witness is not None and _witness.stdout is not None:
        with _witness.stdout as ready:
            select.select([ready], [], [], COMING)
        _witness.stdout = None
    _tell(MET)


def part() -> None:
    """Tell the witness that this rank ends normally."""
    _tell(ENDS)


def note(advice: str) -> None:
    """Give the witness a sentence to print if this rank is killed; "" takes the sentence back."""
    _tell(NOTE + advice.encode() + b"\n")


def _tell(word: bytes) -> None:
    if _witness is not None and _witness.stdin is not None:
        with suppress(OSError):  # the witness has ended
            os.write(_witness.stdin.fileno(), word)


def end_job() -> None:
    """Ask the launcher to end the job, if a rank's exit status would not make it do so."""
    part()
    descriptor = manager()
    if descriptor is not None:
        with suppress(OSError):
            os.write(descriptor, ABORT)
            time.sleep(ENDING)
