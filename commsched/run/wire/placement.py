"""The device of a rank and the path of its packets to MPI, chosen by all ranks at the start."""

import ctypes
import os
import socket
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.errors import Agreed, CommschedError
from commsched.kernels.device import gpus
from commsched.kernels.modules import on_host
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.job.process import keep_freed_memory
from commsched.run.wire.device import HOST, ComputeDevice, check_device
from commsched.run.wire.host import CUT, PLAIN, PlainPath
from commsched.run.wire.path import Path
from commsched.run.wire.staging import CHUNK, POINTED, Pointers, StagedPath
from commsched.timeline.header import RunHeader

SWITCH = "COMMSCHED_BUFFERS"
MODES = ("auto", "staged", "direct")
SUMS = "COMMSCHED_NATIVE"
SUMMERS = ("auto", "mpi", "nccl")
SIZES = (
    256,
    2**22,
)  # B of the probe's messages: MPI libraries send short and long messages by different protocols
PATIENCE = 10.0  # s until a message of the probe counts as lost


class Placement(NamedTuple):
    """A rank's device and its paths to MPI."""

    device: ComputeDevice
    path: Path  # for packets on the device
    host: Path  # for packets in host memory
    shown: str  # description for people
    direct: bool = False  # MPI gets device pointers
    by_nccl: bool = False  # NCCL computes native sums

    def header(self, compute: str, steps: int | None = None) -> RunHeader:
        """Begin a timeline's header: what computes, and the device unless that is NumPy."""
        if self.path is PLAIN:
            return RunHeader(compute=compute, steps=steps)
        return RunHeader(compute=compute, steps=steps, device=self.device.name, buffers=self.shown)


ON_HOST = Placement(HOST, PLAIN, PLAIN, "in memory of the host")


def find_device(name: str, place: int | None = 0) -> ComputeDevice:
    """Open a device by name for rank `place` of its host; ranks take GPUs in turn.

    place None: the GPU that this thread uses now.
    """
    check_device(name)
    if name == "cpu":
        return HOST
    count = gpus()
    from commsched.run.wire.cuda import open_gpu

    return open_gpu(None if place is None else place % count)


def choose_placement(name: str, comm: MPI.Intracomm, *, current: bool = False) -> Placement:
    """Open the named device for this rank, and agree on a path for packets; all ranks call it.

    Ranks of a host take its GPUs in turn, or each its `current` one. Packets go by device pointers
    if MPI says that it takes these and test messages among all ranks arrive; otherwise through host
    memory. If every rank has its own GPU, NCCL computes native sums.
    """
    keep_freed_memory()
    hosts = agree.gather_text(socket.gethostname(), comm)
    place = hosts[: comm.rank].count(hosts[comm.rank])
    device = agree.on_all_ranks(lambda: find_device(name, None if current else place), comm)
    mode = agree.on_all_ranks(lambda: _mode(SWITCH, MODES), comm)
    sums = agree.on_all_ranks(lambda: _mode(SUMS, SUMMERS), comm)
    names = agree.gather_text(device.name, comm)
    if set(names) == {"cpu"}:
        return ON_HOST
    direct, shown = _pointers(device, mode, comm)
    by_nccl, why = native_sums_by_nccl(device, sums, comm)
    device.use("compute")  # for arrays that the caller makes next
    own = CUT if device is HOST else POINTED if direct else CHUNK
    cut = int(
        min(agree.gather_numbers(own, comm))
    )  # ranks with and without a GPU must cut packets alike
    host = PlainPath(cut, persistent=False)  # as those of devices, see HostSum
    if device is HOST:
        return Placement(device, host, host, "in memory of the host")
    path: Path = Pointers(device, cut) if direct else StagedPath(device, cut)
    if by_nccl:
        path = _with_nccl(path, device, comm)
    return Placement(device, path, host, f"{shown}; native sums {why}", direct, by_nccl)


def _mode(switch: str, modes: Sequence[str]) -> str:
    """Return the environment's setting of a choice."""
    mode = os.environ.get(switch, "auto")
    if mode not in modes:
        raise CommschedError(f"{switch} must be one of {', '.join(modes)}; got {mode!r}")
    return mode


def native_sums_by_nccl(device: ComputeDevice, mode: str, comm: MPI.Intracomm) -> tuple[bool, str]:
    """Tell whether NCCL computes all ranks' native sums, and why; all ranks call it."""
    card = f"{socket.gethostname()} {device.card}" if device.card else ""
    cards, lacks = agree.gather_text(card, comm), agree.gather_text(device.lacks(), comm)
    first = {card: rank for rank, card in reversed([*enumerate(cards)])}
    shared = [(first[c], rank) for rank, c in enumerate(cards) if c and first[c] != rank]
    why = next((f"{what} on rank {rank}" for rank, what in enumerate(lacks) if what), "")
    if shared:
        why = "ranks {} and {} share a GPU, which NCCL refuses".format(*shared[0])
    if mode == "nccl" and why:
        raise Agreed(f"{SUMS}=nccl: {why}; nearest: a GPU for each rank, or {SUMS}=mpi")
    if mode == "mpi" or why:
        return False, f"by MPI: {why or SUMS + '=mpi'}"
    return True, "by NCCL: each rank has a GPU of its own"


def _with_nccl(path: Path, device: ComputeDevice, comm: MPI.Intracomm) -> Path:
    """Add NCCL's sums to a path, after a trial."""
    from commsched.run.wire.cuda import Cuda
    from commsched.run.wire.nccl import Nccl

    assert isinstance(device, Cuda)
    found = Nccl(path, device)
    if not min(agree.gather_numbers(found.works(comm), comm)):
        raise Agreed(f"a sum by NCCL came out wrong; set {SUMS}=mpi")
    return found


def _pointers(device: ComputeDevice, mode: str, comm: MPI.Intracomm) -> tuple[bool, str]:
    """Tell whether all ranks may pass device pointers to MPI, and why."""
    says = cuda_support(comm)
    asked = mode != "staged" and (bool(says) or mode == "direct")
    if not min(agree.gather_numbers(asked, comm)):
        why = f"{SWITCH}=staged" if mode == "staged" else "this MPI does not take its pointers"
        return False, f"through pinned memory of the host: {why}"
    arrived = bool(min(agree.gather_numbers(probe_pointers(device, comm), comm)))
    if not arrived and mode == "direct":
        raise Agreed(f"{SWITCH}=direct: a message by a device's pointers came out wrong")
    if not arrived:
        return False, "through pinned memory of the host: a message by its pointers came out wrong"
    return True, f"by its pointers: {says or SWITCH + '=direct'}, and a message arrived"


def cuda_support(comm: MPI.Intracomm) -> str:
    """Tell how MPI announces that it takes GPU pointers: as in MPI 4.1, as Open MPI does, or ""."""
    kinds = comm.Get_info().get("mpi_memory_alloc_kinds") or ""
    if "cuda" in kinds:
        return f"mpi_memory_alloc_kinds is {kinds}"
    try:
        query = ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return ""
    query.restype = ctypes.c_int
    return "MPIX_Query_cuda_support says so" if query() else ""


def probe_pointers(device: ComputeDevice, comm: MPI.Intracomm) -> bool:
    """Tell whether messages from every rank to the next arrive intact; all ranks call it."""
    whole = True
    module = device.module
    device.use("codec")
    for nbytes in SIZES:
        path: Path = PlainPath() if device is HOST else Pointers(device, CUT)
        wanted = (np.arange(nbytes) * 7 + (comm.rank - 1) % comm.size).astype(np.uint8)
        given = module.asarray((np.arange(nbytes) * 7 + comm.rank).astype(np.uint8))
        found = module.zeros(nbytes, np.uint8)
        lane = path.lane(comm, 1)
        moving = [
            lane.receive(found, (comm.rank - 1) % comm.size),
            lane.send(given, (comm.rank + 1) % comm.size),
        ]
        end = now() + PATIENCE
        while not all([each.done() for each in moving]):
            time.sleep(0)
            if now() > end:
                raise CommschedError(
                    f"a message by a device's pointers did not arrive; set {SWITCH}=staged"
                )
        whole = whole and bool((on_host(moving[0].packet) == wanted).all())
    return whole
