"""Where a job without a timeline, or with one that goes to a device or a pipe, leaves its files."""

import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.run.job import agree

FOLDER = "COMMSCHED_LAST"  # variable: that folder
JOBS = 20  # that failed before, whose files stay
NAME = re.compile(r"(\d{8}-\d{6}-\d+)\.rank\d+\.[a-z]+")


def unnamed(comm: MPI.Intracomm) -> Path:
    """Return a name for the job's files in the folder, the same on all ranks, which call it."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path(agree.gather_text(str(_folder() / name), comm)[0])


def make_room(base: Path) -> None:
    """Make the folder of `unnamed` on this host; remove the oldest jobs' files there."""
    folder = base.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid():
            raise PermissionError(None, "it belongs to another user")
        found = {path: match[1] for path in folder.iterdir() if (match := NAME.match(path.name))}
    except OSError as error:
        raise CommschedError(f"{folder}: cannot be made: {error.strerror}") from None
    kept = sorted(set(found.values()))[-JOBS:]
    for path, job in found.items():
        if job not in kept:
            path.unlink(missing_ok=True)


def is_unnamed(base: Path) -> bool:
    """Tell whether `unnamed` has made a name; the user does not know it."""
    return NAME.match(f"{base.name}.rank0.last") is not None


def tidy(base: Path) -> None:
    """Remove the folder if it is empty and the user has not named it."""
    if FOLDER not in os.environ and base.parent == _folder():
        with suppress(OSError):  # it has the files of others
            base.parent.rmdir()


def _folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"commsched-{os.getuid()}"
    return Path(os.environ.get(FOLDER, default))
