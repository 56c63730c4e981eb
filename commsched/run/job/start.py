"""Start a job of ranks on this machine; an interrupt or a timeout leaves no rank behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from commsched.errors import CommschedError
from commsched.run.job.launcher import environment, find_mpiexec

COMMAND = (sys.executable, "-m", "commsched")
LAST = 10  # lines of a quiet job that an error quotes
OURS = "commsched: "  # beginning of our own lines


def commsched(
    ranks: int,
    words: Sequence[str],
    limit: float,
    *,
    quiet: bool = False,
    options: Sequence[str] = (),  # of mpiexec
) -> None:
    """Run a commsched command on `ranks` ranks for at most `limit` s.

    A job that fails is an error, which quotes the last output of a quiet job.
    """
    command = [find_mpiexec(), "-n", str(ranks), *options, *COMMAND, *words]
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=limit)[0] or ""
    except subprocess.TimeoutExpired:
        _end(process)
        raise CommschedError(f"'{' '.join(words)}' took more than {limit:g} s") from None
    except BaseException:
        _end(process)
        raise
    if process.returncode:
        lines = said.splitlines()  # launchers print much when a job fails
        ours = [line for line in lines if line.startswith(OURS)] or lines
        tail = "".join(f"\n{line}" for line in ours[-LAST:])
        raise CommschedError(f"'{' '.join(command)}' ended with status {process.returncode}{tail}")


def _end(process: "subprocess.Popen[str]") -> None:
    """End the launcher, which ends its ranks; then end the rest of the process group."""
    for what in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, what)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
