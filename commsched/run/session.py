"""`commsched run`: execution of a plan's program on real ranks, which returns the timeline."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

from commsched.errors import Agreed, CommschedError
from commsched.exchange.registry import find_method
from commsched.files import check_writable
from commsched.plan.model import Plan
from commsched.program.launch_ops import check_can_leave
from commsched.program.read_plan import read_plan
from commsched.program.registry import STRATEGIES
from commsched.progress import progress_bar, progress_visible
from commsched.run.adapt.plan_switch import Changes, Replan
from commsched.run.engine.board import WaitStatus
from commsched.run.engine.compute_stream import run_steps
from commsched.run.engine.engine import Engine
from commsched.run.engine.measurement import Measurement
from commsched.run.engine.messages import Mail
from commsched.run.engine.verify import Verifier
from commsched.run.engine.worker import Carrying, Emulated, GradientSource, ParameterHolder, Roles
from commsched.run.job import agree
from commsched.run.job.clock import now
from commsched.run.job.ending import end_all
from commsched.run.job.watchdog import end_together, watchdog
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import Placement, choose_placement
from commsched.timeline.model import Timeline

FLUSH = 4  # steps after which spans are written even if there was no quiet moment


@dataclass(kw_only=True)
class RunOptions:
    """The options of a run."""

    steps: int = 10
    timeout: float = 60.0  # s without progress after which the job ends
    verify: bool = False
    worker: Callable[[Plan, int], Emulated] | None = None  # for a plan and a rank; None: emulated
    mail: Callable[[Plan, int], Mail] | None = None  # content of messages; None: zeros
    check: Callable[[Plan], None] | None = None  # raises an error for an unsuitable plan
    replan: Replan | None = None  # plans anew for the measured machine; None: never
    device: str = "cpu"  # or "cuda"
    place: Placement | None = None  # None: chosen for the device
    progress: Callable[[int], None] | None = None  # called with each finished step


def run(plan: Plan, comm: MPI.Intracomm, path: Path, options: RunOptions) -> Timeline | None:
    """Execute a plan's steps on all ranks; rank 0 returns the timeline, the others None.

    Every rank appends its spans to a part file beside `path`; the parts are removed once rank 0 has
    all spans.
    """
    agree.check_launcher()
    with watchdog(comm, "run", options.timeout) as dog:
        agree.check_plan(plan, comm)
        dog.stage("finding the device")
        place = options.place or choose_placement(options.device, comm)
        dog.stage("drawing gradients")
        worker = agree.on_all_ranks(lambda: _worker(plan, comm.rank, options, place), comm)
        dog.stage("comparing hosts and clocks")
        source: GradientSource = Carrying(worker)
        holder: ParameterHolder = worker
        verifier = None
        if options.verify:
            source = holder = verifier = Verifier(plan, comm, source, worker)
        header = place.header("emulated", options.steps)
        measurement = Measurement(plan, comm, path, header)
        dog.stage("making communicators")
        mail = options.mail(plan, comm.rank) if options.mail else None
        roles, recorder = Roles(source, holder, worker), measurement.recorder
        engine = Engine(plan, comm, roles, recorder, options.timeout, mail, place)
        if verifier is None and options.worker is None:  # a verification needs dense arrays
            worker.hand_over_lists()
            engine.buckets.rows_of = worker.rows
        changes = Changes(engine, comm, source, measurement, options.replan)
    engine.start()
    try:
        measurement.wait_for_start()
        between = _between(engine, verifier, options, changes)
        with measurement.telling():
            run_steps(plan, engine, worker, options.steps, measurement.start, between)
    except BaseException as error:
        engine.fail(error)
        raise
    engine.stop()
    with watchdog(comm, "run", options.timeout, first="bringing the spans together") as dog:
        changes.close()
        engine.communication.free()
        if verifier is not None:
            verifier.free()
        return measurement.finish(
            engine,
            dog,
            steps=options.steps,
            verified=verifier.report() if verifier else None,
            fallbacks=changes.fallbacks,
            switches=changes.switches,
        )


def _worker(plan: Plan, rank: int, options: RunOptions, place: Placement) -> Emulated:
    """Return the emulated worker of a rank; reject options that do not fit the plan."""
    if options.verify or options.replan is not None:
        option = "--verify" if options.verify else "--replan"
        attribute = "verifiable" if options.verify else "sums_every_step"
        able = [repr(name) for name, found in STRATEGIES.items() if getattr(found, attribute)]
        if repr(plan.strategy) not in able:
            raise CommschedError(
                f"{option} is for strategy {' or '.join(able)}, not for {plan.strategy!r}"
            )
        sharded = [find_method(launch.method).sharded for launch in plan.launches]
        if not all(sharded) and any(x.since or x.payload != "gradient" for x in plan.launches):
            raise CommschedError(
                f"{option} needs a plan whose launches are the same in every step; this one uses"
                " --first, --later or --refresh"
            )
    if options.replan is not None:
        check_can_leave(plan.launches, "--replan", "run without --replan")
    if options.worker is not None:
        return options.worker(plan, rank)
    return Emulated(plan, rank, place.device.module)


def _between(
    engine: Engine, verifier: Verifier | None, options: RunOptions, changes: Changes
) -> Callable[[int], bool]:
    """Return the function to call after each step; it tells whether the clock restarts."""

    def between(step: int) -> bool:
        if step % FLUSH == FLUSH - 1:
            engine.recorder.flush()
        if verifier is not None:
            _verify(engine, verifier, step)
        if options.progress is not None:
            options.progress(step)
        changed = step + 1 < options.steps and changes.after(step)
        return verifier is not None or changed

    return between


def _verify(engine: Engine, verifier: Verifier, step: int) -> None:
    """Check a step's results once all are complete; the timeline omits the time of the check."""
    engine.drain()
    begun = now()
    what = "waits for the dense sums of all ranks"
    engine.board.show("compute", WaitStatus(step, "verify", what, begun, True))
    verifier.check(step)
    engine.recorder.leave_out(verifier.least(now() - begun))
    engine.board.idle("compute")


def check_timeout(timeout: float) -> None:
    """Reject a deadline of 0 seconds or less."""
    if not timeout > 0:
        raise CommschedError(f"--timeout must be more than 0 seconds, got {timeout}")


@contextmanager
def errors_end_the_job(comm: MPI.Intracomm) -> Iterator[None]:
    """End all ranks when one rank raises an error: the others would wait for that rank."""
    try:
        yield
    except Agreed:
        raise
    except BaseException as error:
        end_all(error, comm)
        raise


def run_file(plan: Path, output: Path, options: RunOptions, progress: bool) -> Timeline | None:
    """Run a plan file on all ranks of the job; an error on a single rank ends all of them."""
    comm = MPI.COMM_WORLD
    end_together("run", options.timeout)
    with errors_end_the_job(comm):
        agree.check_launcher()
        with watchdog(comm, "run", options.timeout):
            agree.on_all_ranks(lambda: _check(options), comm)
            made = agree.on_all_ranks(lambda: _checked_file(plan, options), comm)
            agree.on_all_ranks(lambda: check_writable(output), comm)
        if progress and comm.rank == 0 and progress_visible():
            show = progress_bar("run", options.steps)
            options.progress = lambda step: show(step + 1, "")
        return run(made, comm, output, options)


def _check(options: RunOptions) -> None:
    check_device(options.device)
    if options.steps < 1:
        raise CommschedError(f"--steps must be at least 1, got {options.steps}")
    check_timeout(options.timeout)


def _checked_file(path: Path, options: RunOptions) -> Plan:
    plan = read_plan(path)
    if options.check is not None:
        options.check(plan)
    return plan
