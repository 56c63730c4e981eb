"""The calibration workload on the engine, run like training steps, and its measured costs.

Tight loops miss effects of a real run: hand-overs between threads, late ranks, coding during
exchanges. So one plan is executed and simulated, and the machine is fitted until both agree.
"""

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from commsched.arrays import Floats
from commsched.calibrate.cell_times import (
    CellTimes,
    coding_jitter,
    kinds_of,
    times_of,
)
from commsched.calibrate.workload import FEW, GAP, PAUSE, WARM, apart
from commsched.plan.model import Plan
from commsched.run.engine.compute_stream import Core, run_steps
from commsched.run.engine.engine import Engine
from commsched.run.engine.recorder import Recorder
from commsched.run.engine.worker import Emulated
from commsched.run.job import agree, clock
from commsched.run.job.clock import now
from commsched.run.wire.placement import Placement
from commsched.timeline.model import Span

STEPS = 14  # counted steps, at most
TRIALS = 2  # runs that measure the cells' durations, and so the pauses of the next run
SOON = 20e-3  # s before a step; by then all ranks know when it begins
CHUNK = 1e-3  # s of work between two looks at the clock


class Costs(Recorder):
    """Counts the processor time of coding, of the exchanges' threads otherwise, and of interrupts.

    If ranks do not compute, coding spans last as if all ranks of the node coded at once: work that
    is shorter than a scheduler's time slice has a whole core while other ranks wait.
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
        """Return the cores that a rank's threads lose while an exchange runs."""
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
    """Keeps a core busy until times that are equal on all ranks, even if a rank is disturbed.

    With a fixed amount of work, ranks would drift apart, and exchanges of a step would overlap.
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


def measure(
    comm: MPI.Intracomm, plans: Sequence[Plan], seconds: float, timeout: float, place: Placement
) -> list[CellTimes]:
    """Run plans of the same cells on all ranks for about `seconds`; return times on every rank.

    The pauses between cells follow the cells' durations in a trial, not the planned ones.
    """
    worker = Emulated(plans[0], comm.rank, place.device.module)
    share, found = seconds / len(plans), []

    def spans(plan: Plan, steps: int, recorder: Costs) -> Floats:
        _, kinds = kinds_of(plan)
        mine = np.zeros((2, len(kinds), steps))
        for span in run(comm, plan, steps, recorder, timeout, place, worker, recorder.core):
            if span.name in kinds:
                mine[:, kinds[span.name], span.step] = span.start, span.end
        return np.moveaxis(agree.gather_array(mine, comm), 0, -1)

    for plan in plans:
        for _ in range(TRIALS):
            lasts = _durations(comm, plan, spans)
            plan = apart(plan, [GAP, *(GAP + PAUSE * one for one in lasts)])
        found.append(_measured(comm, plan, share, spans))
    return found


# Runs a plan for some steps; returns its spans on all ranks, in the order of `kinds_of`:
# (start, end) x (kinds * phases) x steps x ranks.
Spans = Callable[[Plan, int, Costs], Floats]


def _measured(comm: MPI.Intracomm, plan: Plan, seconds: float, spans: Spans) -> CellTimes:
    """Run a plan on all ranks for about `seconds`; return the times on every rank."""
    step = sum(layer.backward or 0.0 for layer in plan.net.layers)
    counted = int(np.clip(seconds / step - WARM, FEW, STEPS))
    recorder = Costs(comm.rank, plan)
    steps = WARM + counted
    found = _reduced(comm, plan, spans(plan, steps, recorder)[:, :, WARM:])
    each = np.diff(recorder.spent, prepend=0.0).reshape(-1, len(found.cell))[WARM:]
    everyone = agree.gather_array(np.median(each, axis=0), comm)
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


def _durations(comm: MPI.Intracomm, plan: Plan, spans: Spans) -> list[float]:
    """Run the plan; return the s of each cell, from when the one before it has ended."""
    recorder = Costs(comm.rank, plan)
    start, end = spans(plan, WARM + 1, recorder)[:, :, -1]
    cell, _ = kinds_of(plan)
    begins, ends = np.full(cell[-1] + 1, np.inf), np.zeros(cell[-1] + 1)
    np.minimum.at(begins, np.tile(cell, 3), np.where(start > 0.0, start, np.inf).min(axis=-1))
    np.maximum.at(ends, np.tile(cell, 3), end.max(axis=-1))
    before = np.maximum.accumulate(np.append(0.0, ends[:-1]))
    found: list[float] = np.maximum(ends - np.maximum(begins, before), 0.0).tolist()
    return found


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
    """Return the mean m of exponentially distributed hand-overs, in s.

    longest: (n,) s, the longest hand-over of all p ranks each time; the median counts, to ignore
    disturbances. m solves (1 - exp(-median / m)) ** p = 1 / 2.
    """
    return max(float(np.median(longest) / -np.log1p(-(0.5 ** (1 / ranks)))), 0.0)
