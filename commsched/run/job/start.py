"""The start of a job of ranks on this machine; an interrupt or a timeout leaves no rank behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

from commsched.errors import CommschedError
from commsched.run.job.launcher import environment, find_mpiexec
from commsched.run.job.lifeline import signalled_with_parent

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
    """Run a commsched command; see `run`."""
    run(ranks, [*COMMAND, *words], limit, quiet=quiet, options=options)


def run(
    ranks: int,
    command: Sequence[str],
    limit: float,
    *,
    quiet: bool = False,
    options: Sequence[str] = (),  # of mpiexec
) -> None:
    """Run a command on `ranks` ranks for at most `limit` s.

    Raise an error if the job fails; the error quotes the last output of a quiet job.
    """
    process = started(ranks, command, options, quiet=quiet)
    said, words = "", " ".join(command[len(COMMAND) :])
    try:
        said = process.communicate(timeout=limit)[0] or ""
    except subprocess.TimeoutExpired:
        raise CommschedError(f"'{words}' took more than {limit:g} s") from None
    finally:
        end(process)
        if process.stdout is not None:
            process.stdout.close()
    if process.returncode:
        lines = said.splitlines()  # launchers print many lines when a job fails
        ours = [line for line in lines if line.startswith(OURS)] or lines
        tail = "".join(f"\n{line}" for line in ours[-LAST:])
        what = f"'{words}' on {ranks} ranks"
        raise CommschedError(f"{what} ended with status {process.returncode}{tail}")


def started(
    ranks: int,
    command: Sequence[str],
    options: Sequence[str] = (),  # of mpiexec
    *,
    quiet: bool = False,
    variables: Mapping[str, str] | None = None,
) -> "subprocess.Popen[str]":
    """Start a command on `ranks` ranks in a separate session; see `end`."""
    return subprocess.Popen(
        [find_mpiexec(), "-n", str(ranks), *options, *command],
        env={**os.environ, **environment(), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=signalled_with_parent(signal.SIGTERM),
    )


def end(process: "subprocess.Popen[str]") -> None:
    """End the launcher, which ends its ranks; if it does not end, kill its process group."""
    for what in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        try:
            os.killpg(process.pid, what)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
