"""Benchmark of all-reduces under mpiexec: MPI's and ours in turns, by size."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.coding.registry import CODECS
from commsched.errors import Agreed
from commsched.exchange.endpoint import ReducingEndpoint
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.net.bucket import BucketSpec
from commsched.run.engine.prepare import prepared
from commsched.run.engine.probe import PAUSE
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.job.watchdog import Watchdog, end_together, watchdog
from commsched.run.session import check_timeout, errors_end_the_job
from commsched.run.wire.device import check_device
from commsched.run.wire.path import Exchange, Repeated
from commsched.run.wire.placement import Placement, choose_placement
from commsched.units import nbytes as size

SIZES = tuple(2**k for k in range(10, 27, 2))  # 1 KB to 64 MB
COLLECTIVES = ("ring", "doubling", "halving-doubling", "tree", "direct", "hierarchical", "native")
SECONDS = 1.0  # time spent on one size
ROUNDS = 5  # least number for every size
HOT = 2e-3  # s of back-to-back exchanges in every round
MOST = 50  # back-to-back exchanges in a round


class AllReduceTiming(NamedTuple):
    """Seconds of all-reduces of one size, from sleep (`mpi`, `ours`) or back to back (hot)."""

    nbytes: int
    mpi: float  # MPI's blocking all-reduce, from sleep
    ours: dict[str, float]  # from sleep, by collective
    mpi_hot: float
    ours_hot: dict[str, float]

    @property
    def best(self) -> float:
        """The seconds of our fastest all-reduce from sleep, over those of MPI's."""
        return min(self.ours.values()) / self.mpi

    @property
    def best_hot(self) -> float:
        """The seconds of our fastest back-to-back all-reduce, over those of MPI's."""
        return min(self.ours_hot.values()) / self.mpi_hot


def all_reduce(timeout: float, device: str = "cpu") -> tuple[list[AllReduceTiming], int] | None:
    """Return all timings and the number of ranks, on rank 0; MPI's own sums use host memory."""
    check_device(device)
    with together(timeout) as (comm, dog):
        dog.stage("finding the device")
        cells = list(_cells(comm, dog, choose_placement(device, comm)))
    return (cells, comm.size) if comm.rank == 0 else None


@contextmanager
def together(timeout: float) -> Iterator[tuple[MPI.Intracomm, Watchdog]]:
    """Run a block on all ranks with a deadline per stage; an error on one rank ends all."""
    comm = MPI.COMM_WORLD
    agree.check_launcher()
    if comm.size < 2:
        raise Agreed("this benchmark needs 2 ranks; use 'mpiexec -n 2'")
    end_together("bench", timeout)
    with errors_end_the_job(comm), watchdog(comm, "bench", timeout) as dog:
        agree.on_all_ranks(lambda: check_timeout(timeout), comm)
        yield comm, dog


def _cells(comm: MPI.Intracomm, dog: Watchdog, place: Placement) -> Iterator[AllReduceTiming]:
    """Time MPI's blocking all-reduce and our schedules in turn, dense float32."""
    for nbytes in SIZES:
        dog.stage(f"all-reduces of {size(nbytes)}")
        values = np.zeros(nbytes // 4, np.float32)
        there = place.device.module.asarray(values)
        ours = {name: OurAllReduce(comm, name, there, place) for name in COLLECTIVES}
        works: dict[str, Callable[[], None]] = {
            "MPI": partial(comm.Allreduce, MPI.IN_PLACE, values),
            **ours,
        }
        slept, hot = _in_turn(comm, dog, works)
        for each in ours.values():
            each.free()
        yield AllReduceTiming(nbytes, slept.pop("MPI"), slept, hot.pop("MPI"), hot)


def _in_turn(
    comm: MPI.Intracomm, dog: Watchdog, works: dict[str, Callable[[], None]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median s of each callable on the slowest rank: from sleep, and back to back.

    All callables take turns, so that other load on the machine affects them equally.
    """
    slept: dict[str, list[float]] = {name: [] for name in works}
    hot: dict[str, list[float]] = {name: [] for name in works}
    often: dict[str, int] = {}
    end = now() + SECONDS
    going = True
    while going:
        for name, work in works.items():
            dog.beat()
            if name not in often:
                lasted = agree.largest(seconds_of(work), comm)  # also warms up
                often[name] = max(1, min(MOST, int(HOT / lasted)))
            comm.Barrier()
            time.sleep(PAUSE)
            slept[name].append(seconds_of(work))
            comm.Barrier()
            hot[name].append(seconds_of(work, often[name]))
        more = now() < end or len(slept["MPI"]) < ROUNDS
        going = bool(agree.largest(float(more), comm))
    return _medians(slept, comm), _medians(hot, comm)


def _medians(rows: dict[str, list[float]], comm: MPI.Intracomm) -> dict[str, float]:
    return {name: agree.largest(float(np.median(row)), comm) for name, row in rows.items()}


def seconds_of(work: Callable[[], None], times: int = 1) -> float:
    """Return the mean seconds of a call that is repeated back to back."""
    start = now()
    for _ in range(times):
        work()
    return (now() - start) / times


class OurAllReduce:
    """One all-reduce of ours, in place; each call runs it again."""

    def __init__(self, comm: MPI.Intracomm, name: str, values: Array, place: Placement) -> None:
        self._schedule = route(name, agree.group_of(comm))
        payload = Payload.reducing(self._schedule, CODECS["dense"], BucketSpec.uniform(len(values)))
        self._held = ReducingEndpoint(values, payload, {}, None)
        self._comm, self._place = comm, place
        self._exchange = self._begun()
        complete(self._exchange)
        self._again = self._exchange if isinstance(self._exchange, Repeated) else None

    def _begun(self) -> Exchange:
        way = self._schedule, self._held, self._comm, 0, self._place.path
        return prepared(*way) or begin(*way)

    def __call__(self) -> None:
        if self._again is not None:
            self._again.start()
        complete(self._again or self._begun())
        self._place.device.mark().wait()

    def free(self) -> None:
        """Free the MPI requests."""
        if self._again is not None:
            self._again.free()
