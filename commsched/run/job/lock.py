"""Locks of the files and folders that a job writes; a lock names its holder and ends with it."""

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.errors import CommschedError

if TYPE_CHECKING:
    from mpi4py import MPI

WAIT = 2.0  # s for a holder that is about to end
LOOK = 0.05
SHOWN = 200  # most characters of a holder


@contextmanager
def locked(path: Path, what: str, wait: float = WAIT) -> Iterator[None]:
    """Hold a lock on `path`; after `wait` s raise an error that names the other holder of `what`.

    The lock is on a hidden file beside `path`, or inside `path` if that is a folder. The system
    unlocks it when this process ends in any way.
    """
    file = path / ".lock" if path.is_dir() else path.with_name(f".{path.name}.lock")
    number = _acquired(file, what, wait)
    try:
        yield
    finally:
        with suppress(OSError):
            file.unlink()  # before the lock is released: see `_acquired`
        os.close(number)


@contextmanager
def locked_by_job(path: Path | None, comm: "MPI.Intracomm") -> Iterator[None]:
    """Hold a lock on a file or folder on rank 0, for all ranks; pipes and devices have none."""
    from commsched.run.job.agree import on_all_ranks

    mine = None
    if (
        path is not None
        and comm.rank == 0
        and (path.is_file() or path.is_dir() or not path.exists())
    ):
        mine = locked(path, str(path))
    on_all_ranks(lambda: mine.__enter__() if mine else None, comm)
    try:
        yield
    finally:
        if mine:
            mine.__exit__(None, None, None)


def _acquired(file: Path, what: str, wait: float) -> int:
    """Return the descriptor of a locked file whose content names the holder."""
    end = time.monotonic() + wait
    while True:
        try:
            number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise CommschedError(f"{file}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(number, file):
                os.ftruncate(number, 0)
                os.write(number, _me().encode())
                return number
        except BlockingIOError:
            if time.monotonic() > end:
                holder = os.pread(number, SHOWN, 0).decode(errors="replace")
                os.close(number)
                raise CommschedError(f"{what} is in use by another job: {holder}") from None
            time.sleep(LOOK)
        os.close(number)


def _is(number: int, file: Path) -> bool:
    """Tell whether a descriptor still belongs to the file; its holder may have removed the file."""
    try:
        return os.path.samestat(os.fstat(number), file.stat())
    except FileNotFoundError:
        return False


def _me() -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return f"process {os.getpid()} on host {socket.gethostname()}, since {since}"
