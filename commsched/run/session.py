"""`commsched run`: execute a plan's program on real ranks and bring the timeline home."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mpi4py import MPI

from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.plan import Plan
from commsched.plan import file as plan_file
from commsched.program import Op
from commsched.run import agree
from commsched.run.board import Status
from commsched.run.calibrate import Budget, calibrate
from commsched.run.clock import now
from commsched.run.communication import end_all
from commsched.run.engine import Engine
from commsched.run.measured import Measurement, check_writable
from commsched.run.verify import Verifier
from commsched.run.worker import Emulated, Worker
from commsched.strategies import STRATEGIES
from commsched.timeline import Timeline

QUIET = 5e-3  # s of sleep ahead that are enough to write spans
FLUSH = 4  # steps after which spans are written even if there was no quiet moment


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
    worker = agree.together(lambda: _worker(plan, comm.rank), comm)
    verifier = Verifier(plan, comm, worker) if options.verify else None
    meta = {"steps": options.steps, "compute": "emulated"}
    measurement = Measurement(plan, comm, path, meta)
    engine = Engine(plan, comm, verifier or worker, measurement.recorder, options.timeout)
    engine.start()
    try:
        measurement.wait_for_start()
        _steps(plan, engine, worker, verifier, measurement.start, options)
    except BaseException as error:
        engine.fail(error)
        raise
    engine.stop()
    return measurement.finish(engine, {"verified": verifier.report()} if verifier else {})


def _worker(plan: Plan, rank: int) -> Worker:
    """Emulate a rank of a plan; refuse a plan that has no meaning."""
    STRATEGIES[plan.strategy].lower(plan, 0, {})
    return Emulated(plan, rank)


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
    clock_ = start
    for step in range(options.steps):
        program = strategy.lower(plan, step, engine.buckets.decisions)
        for op in engine.submit(program):
            clock_ = _compute(engine, worker, step, op, clock_)
        if step % FLUSH == FLUSH - 1:
            engine.recorder.flush()
        if verifier is not None:
            _verify(engine, verifier, step)
            clock_ = now()
        if options.progress is not None:
            options.progress(step)
    engine.drain()


def _verify(engine: Engine, verifier: Verifier, step: int) -> None:
    """Check a step's results when all are there; the time it takes is no part of the timeline."""
    engine.drain()
    begun = now()
    what = "waits for the dense sums of all ranks"
    engine.board.status["compute"] = Status(step, "verify", what, begun, True)
    verifier.check(step)
    engine.recorder.leave_out(verifier.least(now() - begun))
    engine.board.idle("compute")


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
        if end - now() > QUIET:
            engine.recorder.flush()  # writing takes the interpreter from the other streams
        time.sleep(max(0.0, end - now()))
        board.mark(step, op.name, now())
    engine.recorder.add("compute", op.name, step, ready, end)
    return end


@contextmanager
def guarded(comm: MPI.Intracomm) -> Iterator[None]:
    """End all ranks when an error is raised on one of them: the others would wait for it."""
    try:
        yield
    except agree.Agreed:
        raise
    except BaseException as error:
        end_all(error, comm)
        raise


def run_file(plan: Path, output: Path, options: Options, progress: bool) -> Timeline | None:
    """Run a plan file on all ranks of the job; an error on one rank alone ends all of them."""
    comm = MPI.COMM_WORLD
    if options.steps < 1:
        raise CommschedError(f"--steps must be at least 1, got {options.steps}")
    if not options.timeout > 0:
        raise CommschedError(f"--timeout must be more than 0 seconds, got {options.timeout}")
    with guarded(comm):
        return _run_file(plan, output, options, progress)


def _run_file(plan: Path, output: Path, options: Options, progress: bool) -> Timeline | None:
    comm = MPI.COMM_WORLD
    agree.check_launcher()
    made = agree.together(lambda: plan_file.read(plan), comm)
    agree.together(lambda: check_writable(output), comm)
    if progress and comm.rank == 0 and sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(total=options.steps, unit="step", desc="run")
        options.progress = lambda step: (bar.update(step + 1 - bar.n), None)[1]
    return run(made, comm, output, options)


def calibrate_file(output: Path, budget: float) -> None:
    """Measure the machine with all ranks of the job; rank 0 writes the machine file."""
    comm = MPI.COMM_WORLD
    if not budget > 0:
        raise CommschedError(f"--seconds must be more than 0, got {budget}")
    agree.check_launcher()
    agree.together(lambda: check_writable(output), comm)
    progress = None
    if comm.rank == 0 and sys.stderr.isatty():
        from tqdm import tqdm

        bar = tqdm(unit="cell", desc="calibrate")

        def progress(done: int, parts: int) -> None:
            bar.total = parts
            bar.update(done - bar.n)

    with guarded(comm):
        machine = calibrate(comm, Budget(seconds=budget), progress)
        if comm.rank == 0:
            machine_file.write(output, machine)
            print(f"{machine.source}; written to {output}")
