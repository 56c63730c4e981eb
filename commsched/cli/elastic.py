"""Options of a supervised job, and the job that they ask for."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from commsched.cli.options import Option
from commsched.cli.signals import end_well
from commsched.errors import CommschedError

OPTIONS = (
    Option("--restarts", "N", "give up after N restarts in a row without a new checkpoint", int, 3),
    Option("--mpiexec", "WORDS", "options of mpiexec, such as '-f hosts'", default=""),
)
COMMSCHED = (sys.executable, "-m", "commsched")


def supervised(what: str) -> bool:
    """Tell whether a supervisor has started this process; refuse ranks that another one started."""
    from commsched.run.job.elastic import FOLDER
    from commsched.run.job.launcher import environment_rank

    if FOLDER in os.environ:
        return True
    if environment_rank() is not None:
        raise CommschedError(f"{what} starts the ranks itself; leave out mpiexec")
    return False


def run(
    ranks: int,
    folder: Path,
    command: Sequence[str],
    args: argparse.Namespace,
    resume: Sequence[str] = (),
) -> int:
    """Supervise a job; return its status."""
    from commsched.run.job.elastic import ElasticJob, supervise

    end_well()
    try:
        options = tuple(shlex.split(args.mpiexec))
    except ValueError as error:
        raise CommschedError(f"--mpiexec {args.mpiexec!r}: {str(error).lower()}") from None
    return supervise(
        ElasticJob(
            ranks=ranks,
            folder=folder,
            command=tuple(command),
            resume=tuple(resume),
            restarts=args.restarts,
            options=options,
        )
    )
