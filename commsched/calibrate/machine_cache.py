"""The cache of the machine that the same ranks measured last time, in the user's cache folder."""

import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

import commsched
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.model import Machine
from commsched.run.job import agree


def kept_machine(comm: MPI.Intracomm, measure: Callable[[], Machine]) -> Machine:
    """Return the cached machine, or else measure it on all ranks and cache it.

    A cached machine has the same hosts in the order of the ranks, the same MPI and the same
    commsched. Files lie in `commsched/machines` of XDG_CACHE_HOME, or of ~/.cache, on rank 0's
    host. An unreadable file is ignored; in a read-only folder nothing is cached.
    """
    facts = agree.gather_text(f"{socket.gethostname()} {MPI.Get_library_version()}", comm)
    name = hashlib.sha256("\n".join([commsched.__version__, *facts]).encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = folder / "commsched" / "machines" / f"{name}.json"
    known = agree.broadcast_data(None if comm.rank else _known(path, comm.size), comm)
    if known is not None:
        return machine_file.from_data(known, str(path))
    machine = measure()
    if comm.rank == 0:
        _keep(path, machine)
    return machine


def _known(path: Path, ranks: int) -> Any:
    """Return a file's machine of `ranks` ranks as JSON data; None if there is none."""
    try:
        found = machine_file.read(path)
    except CommschedError:
        return None
    return machine_file.to_data(found) if found.size == ranks else None


def _keep(path: Path, machine: Machine) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        machine_file.write(path, machine)
    except (OSError, CommschedError):
        return  # a folder that is read-only, or full: measured anew next time
