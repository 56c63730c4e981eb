"""The folder for files of a job without a timeline, or with one that is a device or a pipe."""

import fcntl
import itertools
import os
import re
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.run.job import agree

FOLDER = "COMMSCHED_LAST"  # environment variable that sets the folder
JOBS = 20  # files of this many newest jobs stay, besides those of running jobs
NAME = re.compile(r"(\d{8}-\d{6}-\d+(?:-\d+)?)\.rank\d+\.[a-z]+")
_number = itertools.count()  # in the names that this process makes


def unnamed(comm: MPI.Intracomm) -> Path:
    """Return a name for the job's files in the folder, equal on all ranks; all ranks call it."""
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}-{next(_number)}"
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
    old = set(sorted(set(found.values()))[:-JOBS])
    old -= {job for path, job in found.items() if job in old and _in_use(path)}
    for path, job in found.items():
        if job in old:
            path.unlink(missing_ok=True)


def hold(file: IO[bytes]) -> None:
    """Protect a job's files from `make_room` as long as a copy of this descriptor is open."""
    with suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_SH)


def _in_use(path: Path) -> bool:
    """Tell whether a job holds its file."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:  # in use, or the file system has no locks
        return True
    return False


def is_unnamed(base: Path) -> bool:
    """Tell whether `unnamed` has made a name, which the user therefore does not know."""
    return NAME.match(f"{base.name}.rank0.last") is not None


def tidy(base: Path) -> None:
    """Remove the folder if it is empty and the user has not named it."""
    if FOLDER not in os.environ and base.parent == _folder():
        with suppress(OSError):  # not empty: other jobs have files there
            base.parent.rmdir()


def _folder() -> Path:
    default = Path(tempfile.gettempdir()) / f"commsched-{os.getuid()}"
    return Path(os.environ.get(FOLDER, default))
