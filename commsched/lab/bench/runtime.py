"""Benchmark of the runtime: latency, processor time, and its effect on compute beside it."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats
from commsched.lab.bench.all_reduce import OurAllReduce, all_reduce, together
from commsched.lab.bench.row import BenchRow
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.run.engine.probe import median_seconds
from commsched.run.exchanger import Exchanger
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.session import RunOptions, errors_end_the_job
from commsched.run.session import run as execute
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import choose_placement
from commsched.timeline import file as timeline_file
from commsched.timeline.measure import exposed
from commsched.timeline.model import Timeline
from commsched.units import nbytes as size

BUCKETS, SMALL = 500, 4096  # exchanges of a step, and their bytes
LARGE = 32 * 10**6  # B of the exchange that runs under compute
STEPS = 8
SHORT, OFTEN = 16384, 60  # B and steps of an exchange beside computing
BUSY = 5e-3  # s of computing beside an exchange, at least
ALONE = 0.15  # s that an exchange is timed alone
MATRIX = 256  # rows of the matrices that are multiplied


class Hidden(NamedTuple):
    """The share of an exchange that emulated compute hid, and the processor time it took."""

    ranks: int
    exchange: float  # s, median
    exposed: float  # s, median
    polling: float  # processor seconds of the communication thread per s of exchange

    @property
    def share(self) -> float:
        """Return the share of the exchange that compute hid."""
        return 1 - self.exposed / self.exchange


def overlap(timeout: float, device: str = "cpu", nbytes: int = LARGE) -> Hidden | None:
    """Exchange `nbytes` while a layer computes for about twice as long; rank 0 gets the result."""
    check_device(device)
    with together(timeout) as (comm, dog):
        dog.stage("finding the device")
        place = choose_placement(device, comm)
        dog.stage(f"ring of {size(nbytes)}")
        ring = OurAllReduce(comm, "ring", place.device.module.zeros(nbytes // 4, np.float32), place)
        alone = median_seconds(comm, ALONE, ring)
        ring.free()
    plan = _plan(comm.size, [nbytes // 4], "ring+dense", 2 * alone)
    options = RunOptions(steps=10, timeout=timeout, place=place)
    with errors_end_the_job(comm), tempfile.TemporaryDirectory() as folder:
        timeline = execute(plan, comm, Path(folder) / "overlap.json", options)
    if timeline is None:
        return None
    lasted = _exchanges(timeline)
    polling = sum(timeline.run.polling_cpu_s or ())
    return Hidden(
        comm.size,
        float(np.median(lasted[:, 1:])),
        float(np.median(exposed(timeline)[:, 1:])),
        polling / float(lasted.sum()),
    )


def _plan(ranks: int, sizes: Sequence[int], method: str, seconds: float) -> Plan:
    """Plan tensors whose gradients are ready first, and a long layer without parameters."""
    machine = replace(resized(machine_file.load("localhost"), 1, ranks), jitter=0.0)
    tensors = tuple(Tensor(name=f"t{k}", shape=(numel,)) for k, numel in enumerate(sizes))
    long = Layer(name="long", forward=1e-3, backward=seconds)
    last = Layer(name="last", after=("long",), forward=1e-3, backward=1e-3, tensors=tensors)
    net = Net(name="runtime", layers=(long, last), source="made for the benchmark")
    launches = tuple(
        Launch(
            name=t.name,
            pieces=(Piece(t.name, 0, t.numel),),
            after="last",
            method=method,
            stream="inside",
            priority=k,
        )
        for k, t in enumerate(tensors)
    )
    return Plan(net=net, machine=machine, launches=launches, planner="bench")


def _exchanges(timeline: Timeline) -> Floats:
    """Return the seconds of the exchanges of the first tensor: (ranks, steps)."""
    chosen = np.array([name == "t0/exchange" for name in timeline.names])[timeline.name]
    order = np.lexsort((timeline.step[chosen], timeline.rank[chosen]))
    lasted: Floats = (timeline.end - timeline.start)[chosen][order]
    return lasted.reshape(timeline.ranks, -1)


def rows(parts: Sequence[str], timeout: float) -> Iterator[BenchRow]:
    """Measure some of PARTS under mpiexec; rank 0 gets the rows, other ranks an empty list."""
    for part in parts:
        yield from PARTS[part](timeout)


def _latency(timeout: float) -> Iterator[BenchRow]:
    """Compare the best of our all-reduces with MPI's."""
    found = all_reduce(timeout)
    for cell in found[0] if found else ():
        for how, best, mpi in (
            ("from sleep", cell.best, cell.mpi),
            ("hot", cell.best_hot, cell.mpi_hot),
        ):
            what = f"all-reduce of {size(cell.nbytes)}, {how}"
            bar = "<= 1.1 on 2 ranks, <= 1.25 on 4 of 2 cores"
            yield BenchRow(what, best * mpi, f"{best:.2f} of MPI's time", bar)


def _hidden(timeout: float) -> Iterator[BenchRow]:
    """Measure the share of a core that an exchange under compute takes."""
    found = overlap(timeout)
    if found is not None:
        result = f"{found.polling:.1%} of a core, {found.share:.1%} of it hidden"
        yield BenchRow(f"exchange of {size(LARGE)} under compute", found.exchange, result, "<= 10%")


def _small(timeout: float) -> Iterator[BenchRow]:
    """Measure the processor time of small exchanges that all become ready at once."""
    with together(timeout) as (comm, _):
        plan = _plan(comm.size, [SMALL // 4] * BUCKETS, "doubling+dense", 1e-3)
        plan = replace(plan, params={"together": SMALL})
    moments: list[tuple[float, float]] = []

    def note(_: int) -> None:
        moments.append((time.process_time(), now()))

    options = RunOptions(steps=STEPS, timeout=timeout, progress=note)
    with errors_end_the_job(comm), tempfile.TemporaryDirectory() as folder:
        execute(plan, comm, Path(folder) / "small.json", options)
        spent, lasted = np.median(np.diff(np.array(moments), axis=0), axis=0)
        each = agree.largest(float(spent) / BUCKETS, comm)
    if comm.rank == 0:
        result = f"{each * 1e6:.1f} us of processor time each"
        what = f"{BUCKETS} exchanges of {size(SMALL)}"
        yield BenchRow(what, float(lasted), result, "<= 40 us and their copies and additions")


def _beside_computing(timeout: float) -> Iterator[BenchRow]:
    """Measure exchanges beside sleep, a loop of pure Python, and products of matrices."""
    yield from _beside(timeout, LARGE, "ring+dense", STEPS)
    yield from _beside(timeout, SHORT, "doubling+dense", OFTEN)


def _beside(timeout: float, nbytes: int, method: str, steps: int) -> Iterator[BenchRow]:
    with together(timeout) as (comm, _):
        plan = _plan(comm.size, [nbytes // 4], method, 1e-3)
    gradient = np.zeros(nbytes // 4, np.float32)
    a = np.full((MATRIX, MATRIX), 1e-3, np.float32)
    products: dict[str, list[float]] = {"alone": [], "beside": []}

    def multiply(until: float) -> float:
        """Multiply for a while; return products per second."""
        start, done = now(), 0
        while now() < until:
            np.dot(a, a)
            done += 1
        return done / (now() - start)

    def loop(until: float) -> None:
        while now() < until:
            pass

    def sleep(until: float) -> None:
        time.sleep(max(0.0, until - now()))

    work: tuple[Callable[[float], object], ...] = (sleep, loop, multiply)
    with errors_end_the_job(comm), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "beside.json"
        with Exchanger(plan, comm, timeline=path, timeout=timeout) as exchanger:
            lasted = 0.0
            for step in range(len(work) * steps):
                chosen = work[step % len(work)] if lasted else sleep
                comm.Barrier()
                if chosen is multiply:
                    products["alone"].append(multiply(now() + lasted))
                start = now()
                exchanger.ready("t0", gradient)
                rate = chosen(start + lasted)
                if chosen is multiply:
                    products["beside"].append(float(rate))  # type: ignore[arg-type]
                exchanger.wait("t0")
                lasted = lasted or max(BUSY, 2 * agree.largest(now() - start, comm))
        loss = 1 - float(np.median(products["beside"]) / np.median(products["alone"]))
        loss = agree.largest(loss, comm)
        if comm.rank:
            return
        timeline = timeline_file.read(path)
    spans = _exchanges(timeline).max(axis=0)
    alone, python, computing = (float(np.median(spans[k :: len(work)][1:])) for k in range(3))
    own = max(timeline.run.polling_cpu_s or ()) / len(spans) / lasted
    what = f"exchange of {size(nbytes)} beside "
    result = f"{python / alone:.2f} of alone"
    yield BenchRow(what + "a loop of pure Python", python, result, "<= 1.3")
    result = f"{computing / alone:.2f} of alone; products lose {loss:.1%} to a thread's {own:.1%}"
    bar = "<= 3% beyond copies and additions"
    yield BenchRow(what + "matrix products", computing, result, bar)


PARTS: dict[str, Callable[[float], Iterator[BenchRow]]] = {
    "latency": _latency,
    "small": _small,
    "hidden": _hidden,
    "beside": _beside_computing,
}
