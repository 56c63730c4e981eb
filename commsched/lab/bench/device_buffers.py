"""Benchmark of messages between a device and MPI, and of copies to pinned memory of the host."""

from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.lab.bench.all_reduce import together
from commsched.run.engine.probe import median_seconds, sleeping_barrier
from commsched.run.engine.wait_for_messages import Pacer
from commsched.run.wire.device import HOST, check_device
from commsched.run.wire.host import CUT, PlainPath
from commsched.run.wire.path import Path
from commsched.run.wire.placement import Placement, choose_placement
from commsched.run.wire.staging import CHUNK, Pointers, StagedPath

NBYTES = 64 * 2**20  # of a message
SECONDS = 1.0  # time limit of each measurement


class BufferSeconds(NamedTuple):
    """Seconds for `nbytes`, from medians of the slower of two ranks."""

    device: str
    way: str  # name of the path that the ranks have chosen
    nbytes: int
    copy: float  # to pinned memory, by one rank alone
    staged: float  # a message from rank to rank through pinned memory
    hosted: float  # a message between host arrays: about the limit of both paths
    pointed: float | None  # a message by device pointers; None: MPI does not take them

    @property
    def of_copy(self) -> float:
        """The staged message's bytes per second over the copy's."""
        return self.copy / self.staged

    @property
    def of_staged(self) -> float | None:
        """The pointed message's bytes per second over the staged one's."""
        return None if self.pointed is None else self.staged / self.pointed


def buffers(timeout: float, device: str) -> BufferSeconds | None:
    """Measure messages between the first two ranks; return the result on rank 0."""
    check_device(device)
    with together(timeout) as (comm, dog):
        dog.stage("finding the device")
        place = choose_placement(device, comm)
        dog.stage("messages from rank 0 to rank 1")
        found = measured(comm, place, NBYTES, SECONDS)
    return found if comm.rank == 0 else None


def measured(comm: MPI.Intracomm, place: Placement, nbytes: int, budget: float) -> BufferSeconds:
    """Measure messages with a chosen placement; all ranks call this function."""
    device = place.device
    values = device.module.zeros(nbytes, np.uint8)
    copy = _copied(place, values, budget) if comm.rank == 0 else 0.0
    sleeping_barrier(comm)  # the other ranks must not use bandwidth during the copy
    staged = _sent(comm, place, StagedPath(device, CHUNK), values, budget)
    hosted = _sent(comm, place, PlainPath(CUT), np.zeros(nbytes, np.uint8), budget)
    pointed = hosted if device is HOST else None
    if place.direct:
        pointed = _sent(comm, place, Pointers(device, CUT), values, budget)
    return BufferSeconds(device.about()[0], place.shown, nbytes, copy, staged, hosted, pointed)


def _copied(place: Placement, values: Array, budget: float) -> float:
    """Return the median s of a copy to pinned memory."""
    there = place.device.host(values.nbytes)
    return median_seconds(
        MPI.COMM_SELF, budget, lambda: place.device.copy_out(values, there).wait()
    )


def _sent(comm: MPI.Intracomm, place: Placement, way: Path, values: Array, budget: float) -> float:
    """Return the median s of a message from rank 0 until its arrival at rank 1."""

    def work() -> None:
        lane, pacer = way.lane(comm, 1), Pacer()
        if comm.rank > 1:
            return
        moving = (lane.receive if comm.rank else lane.send)(values, 1 - comm.rank)
        while not moving.done():
            if lane.progress():
                pacer.busy()
            else:
                pacer.rest()
        place.device.mark().wait()

    return median_seconds(comm, budget, work)
