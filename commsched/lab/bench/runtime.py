"""Benchmark the runtime under mpiexec: exchanges by size, and how much of one is hidden."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.endpoint import ReducingEndpoint
from commsched.exchange.pair import route
from commsched.exchange.payload import Payload
from commsched.machine import file as machine_file
from commsched.machine.model import Group, resized
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.run.engine.prepared import prepared
from commsched.run.engine.probe import median_seconds
from commsched.run.engine.transfer import begin
from commsched.run.engine.wait_for_messages import complete
from commsched.run.job import agree
from commsched.run.job.watchdog import Watchdog, end_together, watchdog
from commsched.run.session import RunOptions, check_timeout, errors_end_the_job
from commsched.run.session import run as execute
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import Placement, choose_placement
from commsched.timeline.measure import exposed
from commsched.units import nbytes as size

SIZES = tuple(2**k for k in range(10, 27, 2))  # 1 KB to 64 MB
COLLECTIVES = ("ring", "doubling", "halving-doubling", "tree", "direct", "hierarchical", "native")
SECONDS = 0.15  # time spent on one cell


class ExchangeTiming(NamedTuple):
    """Seconds of an all-reduce of one size, by MPI and by each of our schedules."""

    nbytes: int
    mpi: float
    ours: dict[str, float]


def all_reduce(timeout: float, device: str = "cpu") -> tuple[list[ExchangeTiming], int] | None:
    """Return all cells and the number of ranks, on rank 0; MPI's own sums are in host memory."""
    check_device(device)
    with together(timeout) as (comm, dog):
        dog.stage("finding the device")
        cells = list(_cells(comm, dog, choose_placement(device, comm)))
    return (cells, comm.size) if comm.rank == 0 else None


@contextmanager
def together(timeout: float) -> Iterator[tuple[MPI.Intracomm, Watchdog]]:
    """Run a block on all ranks with a deadline per stage; an error on one rank ends all."""
    comm = MPI.COMM_WORLD
    check_timeout(timeout)
    agree.check_launcher()
    check_ranks(comm, 2)
    end_together("bench", timeout)
    with errors_end_the_job(comm), watchdog(comm, "bench", timeout) as dog:
        yield comm, dog


def _cells(comm: MPI.Intracomm, dog: Watchdog, place: Placement) -> Iterator[ExchangeTiming]:
    """Time MPI's blocking all-reduce and our schedules, dense float32."""
    hosts = agree.gather_text(MPI.Get_processor_name(), comm)
    names = list(dict.fromkeys(hosts))
    group = Group(ranks=tuple(range(comm.size)), nodes=tuple(names.index(h) for h in hosts))
    for nbytes in SIZES:
        values = np.zeros(nbytes // 4, np.float32)
        dog.stage(f"the MPI's all-reduce of {size(nbytes)}")
        mpi = median_seconds(comm, SECONDS, partial(comm.Allreduce, MPI.IN_PLACE, values))
        ours = {}
        there = place.device.module.asarray(values)
        for name in COLLECTIVES:
            dog.stage(f"{name} of {size(nbytes)}")
            ours[name] = _ours(comm, group, name, there, place)
        yield ExchangeTiming(nbytes, mpi, ours)


def _ours(comm: MPI.Intracomm, group: Group, name: str, values: Array, place: Placement) -> float:
    schedule = route(name, group)
    payload = Payload.reducing(schedule, CODECS["dense"], BucketSpec.uniform(len(values)))

    held = ReducingEndpoint(values, payload, {}, None)
    again = prepared(schedule, held, comm, 0, place.path)

    def work() -> None:
        if again is not None:
            again.start()
        complete(again or begin(schedule, held, comm, 0, place.path))
        place.device.mark().wait()

    found = median_seconds(comm, SECONDS, work)
    if again is not None:
        again.free()
    return found


class Hidden(NamedTuple):
    """How much of an exchange passed under emulated compute."""

    ranks: int
    exchange: float  # s, median
    exposed: float  # s, median
    polling: float  # processor seconds of the communication thread per s of exchange


def overlap(timeout: float, device: str = "cpu", nbytes: int = 32 * 10**6) -> Hidden | None:
    """Exchange `nbytes` while a layer computes for about twice as long; rank 0 gets the result."""
    check_device(device)
    with together(timeout) as (comm, dog):
        dog.stage("finding the device")
        place = choose_placement(device, comm)
        values = place.device.module.zeros(nbytes // 4, np.float32)
        group = Group(ranks=tuple(range(comm.size)), nodes=(0,) * comm.size)
        dog.stage(f"ring of {size(nbytes)}")
        alone = _ours(comm, group, "ring", values, place)
    plan = _overlap_plan(comm.size, nbytes // 4, 2 * alone)
    options = RunOptions(steps=10, timeout=timeout, place=place)
    with errors_end_the_job(comm), tempfile.TemporaryDirectory() as folder:
        timeline = execute(plan, comm, Path(folder) / "overlap.json", options)
    if timeline is None:
        return None
    big = np.array([name == "big/exchange" for name in timeline.names])[timeline.name]
    settled = big & (timeline.step > 0)
    exchange = timeline.end[settled] - timeline.start[settled]
    total = float((timeline.end[big] - timeline.start[big]).sum())
    polling = sum(timeline.run.polling_cpu_s or ())
    return Hidden(
        comm.size,
        float(np.median(exchange)),
        float(np.median(exposed(timeline)[:, 1:])),
        polling / total,
    )


def _overlap_plan(ranks: int, numel: int, seconds: float) -> Plan:
    """Plan a large tensor whose gradient is ready first, and a long layer without parameters."""
    machine = resized(machine_file.load("localhost"), 1, ranks)
    net = Net(
        name="overlap",
        layers=(
            Layer(name="long", forward=1e-3, backward=seconds),
            Layer(
                name="big",
                after=("long",),
                forward=1e-3,
                backward=1e-3,
                tensors=(Tensor(name="big.weight", shape=(numel,)),),
            ),
        ),
        source="made for the benchmark",
    )
    piece = Piece("big.weight", 0, numel)
    launch = Launch(name="big", pieces=(piece,), after="big", method="ring+dense", stream="inside")
    machine = replace(machine, jitter=0.0)
    return Plan(net=net, machine=machine, launches=(launch,), planner="bench")


def check_ranks(comm: MPI.Intracomm, ranks: int) -> None:
    """Reject a benchmark that needs more ranks."""
    if comm.size < ranks:
        raise CommschedError(f"this benchmark needs {ranks} ranks; use 'mpiexec -n {ranks}'")
