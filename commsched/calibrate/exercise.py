"""The calibration workload: exchanges of many kinds, which the engine runs like a training step.

Tight loops miss effects of a real run: hand-over between threads, late ranks, coding beside
exchanges. So one plan is both executed and simulated, and the machine is fitted until both agree.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from commsched.arrays import Floats
from commsched.calibrate.cell_times import (
    CellTimes,
    coding_jitter,
    kinds_of,
    times_of,
)
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.pair import LIBRARY
from commsched.exchange.registry import find_method
from commsched.machine.model import Machine
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import PROCESSOR, Measured
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Launch, Plan
from commsched.run.engine.compute_stream import Core, run_steps
from commsched.run.engine.engine import Engine
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.worker import Emulated
from commsched.run.job import agree, clock
from commsched.run.job.clock import now
from commsched.run.wire.placement import Placement
from commsched.schedule.registry import COLLECTIVES
from commsched.timeline.model import Span

DENSE = ("ring", "native", "halving-doubling", "hierarchical", "doubling")
CODED = (("ring", "fp16"), ("halving-doubling", "bf16"), ("all-gather", "coo"))
RING = "ring+dense"
# Methods of several phases, and the density of their gradients.
PHASED = (("zen", 0.05), ("hitopk:0.01", 1.0), ("sparse-ps", 0.05))
DENSITY = 0.05  # of what `coo` exchanges
LARGEST = 16 * 2**20  # B of the largest bucket
LEAST_LARGEST = 2**16  # B of it on the slowest machines
SIZES = (1, 4, 16)  # divisors of the largest size
# More divisors for the MPI's all-reduce, which has no model between its sizes.
BETWEEN = (2, 3, 6, 8, 64)
SMALL = 1024  # B of the smallest bucket
WARM = 1  # warm-up steps, which are left out
STEPS = 14  # counted steps, at most
LEAST = 10  # counted steps, at least
FEW = 4  # counted steps on slow machines, so that large buckets fit into the time
TELLING = 4.0  # least ratio of the longest ring's time to the shortest's, to see time per byte
# Compute between the starts of two exchanges: per second of the first one, and at least, s. The
# pause keeps the coding of the next bucket out of the measured exchange if ranks share cores.
PAUSE, GAP = 1.3, 5e-3
TRIALS = 2  # runs that tell how long the cells take, and so the pauses of the next one
END = "end"  # name of the layer behind the last cell
SOON = 20e-3  # s until a step, in which all ranks have heard when it begins
CHUNK = 1e-3  # s of work between two looks at the clock
PART = 3  # every third cell is held out of the fit


class WorkloadCell(NamedTuple):
    """One exchange of the exercise."""

    method: str
    nbytes: int
    density: float = 1.0

    @property
    def spec(self) -> BucketSpec:
        """Return the bucket that is exchanged."""
        return BucketSpec.uniform(self.nbytes // 4, self.density)

    @property
    def name(self) -> str:
        """Return method and size in words."""
        return f"{self.method} {self.nbytes} B"


class Costs(Recorder):
    """Counts the processor time of coding, of what else exchanges' threads do, and of interrupts.

    If the ranks do not compute, coding spans last as if all ranks of the node coded at once: work
    shorter than a time slice of the scheduler has a core of its own while other ranks wait.
    """

    def __init__(self, rank: int, plan: Plan) -> None:
        super().__init__(rank)
        ranks_per_core = 1.0 / plan.machine.alone
        self.core = TimedCore(ranks_per_core)  # on which the layers compute
        self._at_once = 1.0 if plan.net.occupies_cores else ranks_per_core
        self._coding = 0.0  # s of processor time
        self.coded: list[float] = []  # s of it that each operation took
        self._computing = time.pthread_getcpuclockid(threading.get_ident())
        self._used: dict[str, float] = {}  # s of processor time of each stream's thread
        self.spent: list[float] = []  # s of processor time but for coding, until each exchange ends
        self._before = np.array([now(), time.process_time()])
        self._worked = np.zeros((2, 2))  # s and s of work, without an exchange and beside one

    def keep(self, span: Span) -> None:
        lasted = span.end - span.start
        if span.stream in ("encode", "decode"):
            used = time.thread_time()
            # Waiting uses processor time, too.
            spent = min(used - self._used.get(span.stream, used), lasted)
            self._used[span.stream] = used
            self._coding += spent
            self.coded.append(spent)
            span = span._replace(start=span.end - max(lasted, spent * self._at_once))
        elif span.stream != "compute":
            threads = time.process_time() - time.clock_gettime(self._computing)
            self.spent.append(threads - self._coding)
        if span.stream != "compute":
            self._note_work(span.stream not in ("encode", "decode"))
        super().keep(span)

    @property
    def interrupts(self) -> float:
        """Return the cores that a rank's threads have without an exchange, not beside one."""
        (alone, worked_alone), (beside, worked_beside) = self._worked
        if not (alone and beside):
            return 0.0
        return float(np.clip(worked_alone / alone - worked_beside / beside, 0.0, 1.0))

    def _note_work(self, exchanges: bool) -> None:
        """Count the seconds since the last exchange or coding ended, and the work done in them."""
        until = np.array([now(), time.process_time() - self.core.interrupted])
        self._worked[int(exchanges)] += until - self._before
        self._before = until


class TimedCore(Core):
    """Keeps a core busy until times that are the same on all ranks, whatever disturbs a rank.

    By work alone the ranks would drift apart, and the exchanges of a step run into each other.
    """

    def __init__(self, ranks_per_core: float) -> None:
        super().__init__()
        self._ranks_per_core = ranks_per_core
        self._until = 0.0

    def spin(self, seconds: float) -> None:
        """Keep the core busy for as long as `seconds` of work take if all ranks compute.

        A rank catches up on a delay, but not on a wait that is longer than the gap between cells.
        """
        self._until = max(self._until, now() - GAP) + seconds * self._ranks_per_core
        while now() < self._until:
            super().spin(CHUNK)


def choose(machine: Machine, seconds: float) -> list[WorkloadCell]:
    """Choose cells of all kinds, as large as `seconds` for all repeats allow.

    If the bytes would hardly show beside the start-ups, choose larger cells and fewer repeats.
    """
    cells = _fitting(machine, seconds, LEAST)
    return cells if tell_bytes(machine, cells) else _fitting(machine, seconds, FEW)


def tell_bytes(machine: Machine, cells: Sequence[WorkloadCell]) -> bool:
    """Tell whether the largest exchanges last long enough to show their time per byte."""
    rings = [_seconds(machine, cell) for cell in cells if cell.method == RING]
    return max(rings) >= TELLING * min(rings)


def _fitting(machine: Machine, seconds: float, steps: int) -> list[WorkloadCell]:
    """Return the largest cells whose repeats fit into the time.

    Where start-ups alone exceed it, as on a GPU that ranks share, small cells would save little:
    then bytes may take as long again.
    """

    def step(cells: Sequence[WorkloadCell]) -> float:
        return sum(_pause(machine, cell) for cell in cells)

    largest = LARGEST
    most = max(seconds / (WARM + steps), 2 * step(_cells(machine, LEAST_LARGEST)))
    while step(_cells(machine, largest)) > most and largest > LEAST_LARGEST:
        largest //= 2
    return _cells(machine, largest)


def _cells(machine: Machine, largest: int) -> list[WorkloadCell]:
    sizes = [*(largest // part for part in SIZES), SMALL]
    found = []
    for collective in DENSE:
        try:
            schedule = COLLECTIVES[collective](machine.everyone)
        except CommschedError:
            continue  # not for this shape of machine
        if collective != "hierarchical" or machine.nodes > 1:
            more = [largest // part for part in BETWEEN] if schedule.library else []
            found += [WorkloadCell(f"{collective}+dense", n) for n in sorted({*sizes, *more})]
    for collective, codec in CODED:
        density = DENSITY if codec == "coo" else 1.0
        found += [WorkloadCell(f"{collective}+{codec}", n, density) for n in sorted(sizes)]
    found += [WorkloadCell(method, n, density) for method, density in PHASED for n in sorted(sizes)]
    return found


def _seconds(machine: Machine, cell: WorkloadCell) -> float:
    return price(find_method(cell.method), cell.spec, machine, machine.everyone).seconds


def _pause(machine: Machine, cell: WorkloadCell) -> float:
    return GAP + PAUSE * _seconds(machine, cell)


def held_out(cells: Sequence[WorkloadCell]) -> npt.NDArray[np.bool_]:
    """Select every third cell, but not the ends of the measured curve: (cells,)."""
    ends = {f(c for c in cells if c.method == LIBRARY) for f in (min, max)}
    return np.array([i % PART == 1 and cell not in ends for i, cell in enumerate(cells)])


def make_plan(machine: Machine, cells: Sequence[WorkloadCell]) -> Plan:
    """Plan one layer and one launch per cell, and a layer behind them that lasts as the last cell.

    The backward pass starts with the first cell.
    """
    pauses = [GAP, *(_pause(machine, cell) for cell in cells)]
    end = Layer(name=END, forward=0.0, backward=pauses[-1])
    layers: list[Layer] = []
    launches: list[Launch] = []
    for number, cell in enumerate(cells):
        law = Sparsity(law="uniform", density=cell.density) if cell.density < 1 else Sparsity()
        name = f"c{number}"
        tensor = Tensor(name=name, shape=(cell.nbytes // 4,), sparsity=law)
        after = f"c{number + 1}" if number + 1 < len(cells) else END
        layers.append(
            Layer(
                name=name,
                after=(after,),
                forward=0.0,
                backward=pauses[number],
                tensors=(tensor,),
            )
        )
        launches.append(
            Launch(
                name=name,
                pieces=(Piece(name, 0, tensor.numel),),
                after=name,
                method=cell.method,
                stream="between" if machine.nodes > 1 else "inside",
                priority=number,
            )
        )
    return Plan(
        net=Net(name="exercise", layers=(end, *reversed(layers)), source="for calibration"),
        machine=replace(machine, jitter=0.0),
        launches=tuple(launches),
        params={"overlap": "backward"},
    )


def computing(plan: Plan) -> Plan:
    """Return the plan whose compute keeps a core busy."""
    measured = Measured(device=PROCESSOR, source="for calibration")
    return replace(plan, net=replace(plan.net, measured=measured))


def measure(
    comm: MPI.Intracomm, plans: Sequence[Plan], seconds: float, timeout: float, place: Placement
) -> list[CellTimes]:
    """Run plans of the same cells on all ranks for about `seconds`; return times on every rank.

    What the cells take in a trial is what the pauses between them follow, not what is planned.
    """
    worker = Emulated(plans[0], comm.rank, place.device.module)
    share, found = seconds / len(plans), []
    for plan in plans:
        for _ in range(TRIALS):
            lasts = _durations(comm, plan, timeout, place, worker)
            plan = apart(plan, [GAP, *(GAP + PAUSE * one for one in lasts)])
        found.append(_measured(comm, plan, share, timeout, place, worker))
    return found


def _measured(
    comm: MPI.Intracomm,
    plan: Plan,
    seconds: float,
    timeout: float,
    place: Placement,
    worker: Emulated,
) -> CellTimes:
    """Run a plan on all ranks for about `seconds`; return the times on every rank."""
    step = sum(layer.backward or 0.0 for layer in plan.net.layers)
    counted = int(np.clip(seconds / step - WARM, FEW, STEPS))
    recorder = Costs(comm.rank, plan)
    steps = WARM + counted
    table = _spans(comm, plan, steps, recorder, timeout, place, worker)[:, :, WARM:]
    found = _reduced(comm, plan, table)
    each = np.diff(recorder.spent, prepend=0.0).reshape(-1, len(found.cell))[WARM:]
    everyone = np.empty((comm.size, len(found.cell)))
    comm.Allgather(np.median(each, axis=0), everyone)
    coded = np.array(recorder.coded).reshape(steps, -1)[WARM:]
    coding, interrupts = (
        float(np.mean(agree.gather_numbers(one, comm)))
        for one in (float(np.median(coded)), recorder.interrupts)
    )
    return found._replace(processor=everyone.mean(axis=0), coding=coding, interrupts=interrupts)


def run(
    comm: MPI.Intracomm,
    plan: Plan,
    steps: int,
    recorder: Recorder,
    timeout: float,
    place: Placement,
    worker: Emulated | None = None,
    core: Core | None = None,
) -> list[Span]:
    """Run a plan on all ranks for some steps; all ranks begin each of them at the same time.

    Returns this rank's spans, by the clock of rank 0. worker: its gradients, if drawn already.
    """
    spans: list[Span] = []
    recorder.takers.append(spans.append)
    worker = worker or Emulated(plan, comm.rank, place.device.module)
    engine = Engine(plan, comm, worker.roles, recorder, timeout, place=place)
    engine.start()
    offset = clock.align(comm).offset

    def begin(_: int) -> bool:
        start = agree.largest(now() + offset, comm) + SOON - offset
        time.sleep(max(0.0, start - now()))
        return True

    try:
        begin(0)
        run_steps(plan, engine, worker, steps, between=begin, core=core)
    except BaseException as error:
        engine.fail(error)
        raise
    engine.stop()
    return [span._replace(start=span.start + offset, end=span.end + offset) for span in spans]


def _spans(
    comm: MPI.Intracomm,
    plan: Plan,
    steps: int,
    recorder: Costs,
    timeout: float,
    place: Placement,
    worker: Emulated,
) -> Floats:
    """Run a plan; return its spans on all ranks, (start, end) x (kinds * phases) x steps x ranks.

    The spans stand in the order of `kinds_of`.
    """
    _, kinds = kinds_of(plan)
    mine = np.zeros((2, len(kinds), steps))
    for span in run(comm, plan, steps, recorder, timeout, place, worker, recorder.core):
        if span.name in kinds:
            mine[:, kinds[span.name], span.step] = span.start, span.end
    everyone = np.empty((comm.size, *mine.shape))
    comm.Allgather(mine, everyone)
    return np.moveaxis(everyone, 0, -1)


def _durations(
    comm: MPI.Intracomm, plan: Plan, timeout: float, place: Placement, worker: Emulated
) -> list[float]:
    """Run the plan; return the s of each cell, from when the one before it has ended."""
    recorder = Costs(comm.rank, plan)
    start, end = _spans(comm, plan, WARM + 1, recorder, timeout, place, worker)[:, :, -1]
    cell, _ = kinds_of(plan)
    begins, ends = np.full(cell[-1] + 1, np.inf), np.zeros(cell[-1] + 1)
    np.minimum.at(begins, np.tile(cell, 3), np.where(start > 0.0, start, np.inf).min(axis=-1))
    np.maximum.at(ends, np.tile(cell, 3), end.max(axis=-1))
    before = np.maximum.accumulate(np.append(0.0, ends[:-1]))
    found: list[float] = np.maximum(ends - np.maximum(begins, before), 0.0).tolist()
    return found


def apart(plan: Plan, pauses: Sequence[float]) -> Plan:
    """Return the plan with other s of compute before each of its cells."""
    layers = [
        replace(layer, backward=pause)
        for layer, pause in zip(plan.net.layers, reversed(pauses), strict=True)
    ]
    return replace(plan, net=replace(plan.net, layers=tuple(layers)))


def _reduced(comm: MPI.Intracomm, plan: Plan, table: Floats) -> CellTimes:
    """Reduce spans of all ranks to times of phases."""
    cell, _ = kinds_of(plan)
    decoded, exchanged = table[0, 2 * len(cell) :], table[1, : len(cell)]
    late = np.where(decoded > 0.0, decoded - exchanged, -np.inf).max(axis=-1)
    return times_of(cell, table)._replace(
        handover=mean_handover(late[late > -np.inf], comm.size),
        jitter=coding_jitter((table[1] - table[0])[len(cell) :]),
    )


def mean_handover(longest: Floats, ranks: int) -> float:
    """Return the mean of exponentially distributed hand-overs, in s.

    longest: (n,) s, the longest of all ranks each time; its median counts, so that a time of other
    work does not. Of p ranks it is m with (1 - exp(-median / m)) ** p = 1 / 2.
    """
    return max(float(np.median(longest) / -np.log1p(-(0.5 ** (1 / ranks)))), 0.0)
