"""`commsched run`: execute a plan's program on real ranks and bring the timeline home."""

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.plan import Plan
from commsched.plan import file as plan_file
from commsched.program import STREAMS, Op
from commsched.run import agree, clock
from commsched.run.clock import Clock, now
from commsched.run.engine import Engine
from commsched.run.record import Recorder
from commsched.run.verify import Verifier
from commsched.run.worker import Emulated, Worker
from commsched.strategies import STRATEGIES
from commsched.timeline import Span, Timeline
from commsched.timeline import file as timeline_file
from commsched.timeline.measure import waiting_filled
from commsched.timeline.parts import PartWriter, remove_parts

LEAD = 0.05  # s from the agreement on the start to the start


@dataclass(kw_only=True)
class Options:
    """How to run a plan."""

    steps: int = 10
    timeout: float = 60.0  # s without progress until the job is ended
    verify: bool = False
    progress: Callable[[int], None] | None = field(default=None)  # called with each finished step


def run(plan: Plan, comm: MPI.Intracomm, path: Path, options: Options) -> Timeline | None:
    """Execute a plan's steps on all ranks; rank 0 returns the timeline, the others None.

    Every rank appends its spans to a file of its own beside `path`; they are removed once rank 0
    has all spans.
    """
    agree.check_launcher()
    agree.check_plan(plan, comm)
    hosts, different = agree.placement(plan.machine, comm)
    worker: Worker = Emulated(plan, comm.rank)
    verifier = Verifier(plan, comm, worker) if options.verify else None
    aligned = clock.align(comm)
    start = _common_start(comm, aligned)
    header = _header(plan, comm, options, aligned, start)
    header["meta"] |= {"hosts": hosts, "placement": different}
    recorder = Recorder(comm.rank, PartWriter(path, comm.rank, header))
    engine = Engine(plan, comm, verifier or worker, recorder, options.timeout)
    engine.start()
    try:
        _steps(plan, engine, worker, verifier, start, options)
    except BaseException as error:
        engine.fail(error)
        raise
    engine.stop()
    recorder.close()
    header["clock_uncertainty_us"] = agree.largest(_worst(aligned, clock.align(comm)), comm) * 1e6
    header["meta"]["polling_cpu_s"] = agree.each(engine.communication.cpu, comm)
    header["meta"]["decisions"] = engine.buckets.decisions
    if verifier is not None:
        header["meta"]["verified"] = verifier.report()
    timeline = _collect(plan, comm, recorder, header)
    if timeline is not None:
        timeline_file.write(path, timeline)
        remove_parts(path)
    return timeline


def _header(
    plan: Plan, comm: MPI.Intracomm, options: Options, aligned: Clock, start: float
) -> dict[str, Any]:
    """What a rank's file says before its spans."""
    program = STRATEGIES[plan.strategy].lower(plan, 1, {})
    return {
        "plan_hash": plan.hash,
        "ranks": comm.size,
        "clock_offset_us": aligned.offset * 1e6,
        "clock_uncertainty_us": aligned.uncertainty * 1e6,
        "t0": start + aligned.offset,
        "streams": STREAMS,
        "names": tuple(op.name for op in program.role_of(comm.rank).ops),
        "meta": {
            "net": plan.graph.name,
            "machine": plan.machine.name,
            "strategy": plan.strategy,
            "steps": options.steps,
            "compute": "emulated",
            "mpi": MPI.Get_library_version().splitlines()[0].strip("\x00 "),
            "python": platform.python_version(),
            "cores": len(os.sched_getaffinity(0)),
        },
    }


def _common_start(comm: MPI.Intracomm, aligned: Clock) -> float:
    """A moment in the near future, the same on all ranks, on this rank's clock."""
    comm.Barrier()
    moment = np.array([now() + LEAD])
    comm.Bcast(moment, 0)
    return float(moment[0]) - aligned.offset


def _worst(before: Clock, after: Clock) -> float:
    """The clock's uncertainty over the whole run, drift included: s."""
    return max(before.uncertainty, after.uncertainty) + abs(after.offset - before.offset)


def _steps(
    plan: Plan,
    engine: Engine,
    worker: Worker,
    verifier: Verifier | None,
    start: float,
    options: Options,
) -> None:
    """Run the compute stream of every step in this thread."""
    strategy = STRATEGIES[plan.strategy]
    time.sleep(max(0.0, start - now()))
    clock_ = start
    for step in range(options.steps):
        program = strategy.lower(plan, step, engine.buckets.decisions)
        for op in engine.submit(program):
            clock_ = _compute(engine, worker, step, op, clock_)
        engine.recorder.flush()
        if verifier is not None:
            engine.drain()
            verifier.check(step)
            clock_ = now()
        if options.progress is not None:
            options.progress(step)
    engine.drain()


def _compute(engine: Engine, worker: Worker, step: int, op: Op, ready: float) -> float:
    """Emulate one operation that may start at `ready`; returns when it ends.

    Like an accelerator that waits for events, it starts at the moment its inputs were there, and
    ends at an absolute deadline: a late wake-up of this thread does not add up. The thread sleeps
    only where another operation waits for the end.
    """
    board = engine.board
    if op.after:
        board.wait("compute", step, op, deadline=True)
        ready = max(ready, board.when(step, op.after))
    end = ready + worker.seconds(step, op.seconds)
    if op.name in engine.watched:
        time.sleep(max(0.0, end - now()))
        board.mark(step, op.name, now())
    engine.recorder.add("compute", op.name, step, ready, end)
    return end


def _collect(
    plan: Plan, comm: MPI.Intracomm, recorder: Recorder, header: dict[str, Any]
) -> Timeline | None:
    """Bring all spans to rank 0, on its clock, relative to the start."""
    shift = header["clock_offset_us"] * 1e-6 - header["t0"]
    mine = [s._replace(start=s.start + shift, end=s.end + shift) for s in recorder.spans]
    rows = agree.gather_text(msgspec.json.encode(mine).decode(), comm)
    if comm.rank != 0:
        return None
    spans = [Span(*row) for text in rows for row in msgspec.json.decode(text)]
    timeline = Timeline.of(
        spans,
        kind="measured",
        plan_hash=plan.hash,
        ranks=comm.size,
        streams=header["streams"],
        names=header["names"],
        clock_uncertainty=header["clock_uncertainty_us"] * 1e-6,
        meta=header["meta"],
    )
    return waiting_filled(timeline)


def run_file(plan: Path, output: Path, options: Options, progress: bool) -> Timeline | None:
    """Run a plan file on all ranks of the job; an error on one rank alone ends all of them."""
    comm = MPI.COMM_WORLD
    if options.steps < 1:
        raise CommschedError(f"--steps must be at least 1, got {options.steps}")
    if not options.timeout > 0:
        raise CommschedError(f"--timeout must be more than 0 seconds, got {options.timeout}")
    agree.check_launcher()
    made = agree.together(lambda: plan_file.read(plan), comm)
    agree.together(lambda: _writable(output), comm)
    if progress and comm.rank == 0 and sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=options.steps, unit="step", desc="run")
        options.progress = lambda step: (bar.update(step + 1 - bar.n), None)[1]
    return run(made, comm, output, options)


def _writable(path: Path) -> None:
    """Refuse a place where the timeline could not be written, before the work and not after."""
    folder = path.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or path.is_dir():
        raise CommschedError(f"{path}: cannot be written there; give a file in a writable folder")
