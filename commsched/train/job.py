"""A training from its command line to its result: plan, net, data, log, checkpoints."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from commsched.errors import Agreed, CommschedError
from commsched.files import check_writable, make_folder
from commsched.net.graph import Net
from commsched.plan.model import Param, Plan
from commsched.program.read_plan import read_plan
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy
from commsched.progress import progress_bar, progress_visible
from commsched.run.job import agree
from commsched.run.job.ending import say
from commsched.run.job.lock import locked_by_job
from commsched.run.job.store import PLAN, Manifest, Store
from commsched.run.job.watchdog import end_together, watchdog
from commsched.run.session import check_timeout, errors_end_the_job
from commsched.run.wire.device import check_device
from commsched.run.wire.placement import Placement, choose_placement
from commsched.timeline.summary import summary
from commsched.train.agreed_plan import Make, check_strategy, profile_and_plan
from commsched.train.assignment import Assignment, Settings
from commsched.train.digest import common_digest, digest_per_rank
from commsched.train.layers.layer import TrainableNet
from commsched.train.load import DEFAULT, net_under_load, settings_of_rank
from commsched.train.neighbours import MpiNeighbours
from commsched.train.optimizers import RATES, find_optimizer
from commsched.train.packing import unpacked
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import check_batch
from commsched.train.samples import Data
from commsched.train.schedules import CONSTANT, RateSchedule
from commsched.train.training import Training, TrainOptions, is_watched
from commsched.train.workers.daso import DasoWorker
from commsched.train.workers.expert import ExpertWorker
from commsched.train.workers.grid import GridWorker
from commsched.train.workers.learner import Learner
from commsched.train.workers.local import LocalLossWorker
from commsched.train.workers.pipeline import PipelineWorker
from commsched.train.workers.samo import SamoWorker
from commsched.train.workers.shadow import ShadowWorker
from commsched.train.workers.sharded import ShardedWorker
from commsched.train.workers.trainee import Trainee
from commsched.training_log import LogHeader, LogRow, TrainingLog, check_no_other

# Strategy -> the worker that performs its programs, with arrays of a module.
TRAINED: dict[str, Callable[[Assignment], Trainee]] = {
    "sync": Learner,
    "daso": DasoWorker,
    "shadow": ShadowWorker,
    "zero1": ShardedWorker,
    "zero2": ShardedWorker,
    "zero3": ShardedWorker,
    "gpipe": PipelineWorker,
    "1f1b": PipelineWorker,
    "tensor": GridWorker,
    "3d": GridWorker,
    "expert": ExpertWorker,
    "samo": SamoWorker,
    "local": LocalLossWorker,
}
PRECISIONS = ("fp32", "fp16")
PRECISION = {"samo": "fp16", "local": "fp32"}  # of strategies with a single precision


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """The settings of the command line; None if a setting is left open."""

    net: str
    strategy: str
    plan: Path | None
    method: str | None  # of a new plan
    params: Mapping[str, Param]  # of the new plan's strategy
    planning: Mapping[str, Param]  # flag -> setting of the new plan
    optimizer: str | None
    rate: float | None
    schedule: RateSchedule = CONSTANT
    validate: bool = False  # hold out training samples instead of the fold
    batch: int
    seed: int
    fold: int
    precision: str | None
    epochs: float | None  # replaces the steps of the options
    log: Path | None
    figure: Path | None
    checkpoint: Path | None
    resume: bool
    options: TrainOptions
    device: str  # "cpu" or "cuda"
    make: Make  # makes a plan if no file is given
    made: Plan | None = None  # replaces a plan file and a new plan
    check: Callable[[Plan, int], None] | None = None  # raises an error for too many steps of a plan
    fits: Callable[[TrainableNet], None] = lambda _: None  # raises an error for too large a net


def train_job(wanted: TrainRequest, progress: bool) -> dict[str, Any] | None:
    """Train on all ranks; return the result on rank 0, None on the others."""
    comm = MPI.COMM_WORLD
    end_together("train", wanted.options.timeout)
    with errors_end_the_job(comm), ExitStack() as locks:
        return _train(wanted, comm, progress, locks)


def _train(
    wanted: TrainRequest, comm: MPI.Intracomm, progress: bool, locks: ExitStack
) -> dict[str, Any] | None:
    agree.check_launcher()
    with watchdog(comm, "train", wanted.options.timeout) as dog:
        net = agree.on_all_ranks(lambda: checked(wanted), comm)
        for path in (wanted.checkpoint, wanted.log):
            locks.enter_context(locked_by_job(path, comm))
        dog.stage("finding the device")
        place = choose_placement(wanted.device, comm)
        dog.stage("reading the data")
        data = agree.on_all_ranks(lambda: data_of(wanted, net), comm)
        parts = 1 if isinstance(STRATEGIES[wanted.strategy], PipelineStrategy) else comm.size
        agree.on_all_ranks(lambda: check_batch(wanted.batch, len(data.train), parts), comm)
        dog.stage("planning")
        plan = _plan(wanted, net, len(data.train), comm, place, dog.beat)
        agree.check_plan(plan, comm)
        options = _options(wanted, len(data.train))
        settings = settings_of(wanted, plan, options.steps)
        check_end(plan, options.steps)
        if (check := wanted.check) is not None:  # before anything is made; `steps` is checked below
            agree.on_all_ranks(lambda: check(plan, 0), comm)
        worker, module = TRAINED[plan.strategy], place.device.module
        assigned = Assignment(net, data, plan, settings, comm.rank, module, dog.beat)
        learner = agree.on_all_ranks(lambda: worker(assigned), comm)
        common_digest(learner.whole(MpiNeighbours(comm)), comm, "at the start")
        made = _checkpoint_flags(net, settings, wanted)
        made |= {"--validate": True} if wanted.validate else {}
        store, kept = None, None
        if wanted.checkpoint is not None:
            store = Store(wanted.checkpoint, comm, "npz", made, plan, wanted.planning)
            if wanted.resume:
                kept = _last(store, wanted.checkpoint)
            else:
                store.begin()
        first = 0 if kept is None else kept[0].step
        if options.steps < first:
            said = f"--steps must be at least {first}, the step of the checkpoint"
            raise Agreed(f"{said}, got {options.steps}")
        if check is not None:
            agree.on_all_ranks(lambda: check(plan, options.steps - first), comm)
        log = agree.on_all_ranks(lambda: _log(wanted, net, plan, made, first, comm.rank), comm)
    if plan.max_error and not is_watched(plan, store) and comm.rank == 0:
        say("the plan's error budget is watched for strategy 'sync' without --checkpoint only")
    if progress and comm.rank == 0 and progress_visible():
        options = replace(options, progress=_bar(options.steps))
    training = Training(learner, plan, comm, log, store, options, place)
    if kept is not None:
        training.resume(*kept)
    timeline = training.run()
    if log is not None:
        log.close()
    found = _result(training, learner, plan, options, comm)
    if found is not None and timeline is not None and len(timeline):
        found["measured"] = summary(timeline)
    return found


def checked(wanted: TrainRequest) -> TrainableNet:
    """Check the settings before anything is made."""
    options = wanted.options
    check_timeout(options.timeout)
    check_device(wanted.device)
    if wanted.strategy not in TRAINED:
        STRATEGIES[wanted.strategy]
        known = ", ".join(TRAINED)
        raise CommschedError(f"strategy {wanted.strategy!r} cannot be trained; known: {known}")
    only = PRECISION.get(wanted.strategy)
    if wanted.precision not in (None, *((only,) if only else PRECISIONS)):
        known = only or ", ".join(PRECISIONS)
        raise CommschedError(f"--precision must be one of {known}, got {wanted.precision!r}")
    if wanted.optimizer is not None:
        find_optimizer(wanted.optimizer)
    if wanted.rate is not None and not 0 < wanted.rate < np.inf:
        raise CommschedError(f"--rate must be finite and more than 0, got {wanted.rate}")
    if wanted.resume and wanted.checkpoint is None:
        raise CommschedError("--resume needs --checkpoint, the folder to resume from")
    for flag, value in (("--evaluate", options.evaluate), ("--every", options.every)):
        if value < 1:
            raise CommschedError(f"{flag} must be at least 1, got {value}")
    if options.steps < 1 or (wanted.epochs is not None and not 0 < wanted.epochs <= 1e6):
        raise CommschedError("--steps must be at least 1, and --epochs in (0, 10^6]")
    for path in (options.timeline, wanted.log, wanted.figure):
        if path is not None:
            check_writable(path)
    if wanted.log is not None:
        check_no_other(wanted.log)
    if wanted.checkpoint is not None and not wanted.resume:
        make_folder(wanted.checkpoint)
    net = NETS[wanted.net]
    wanted.fits(net)
    return net


def _plan(
    wanted: TrainRequest,
    net: TrainableNet,
    samples: int,
    comm: MPI.Intracomm,
    place: Placement,
    beat: Callable[[], None],
) -> Plan:
    """Return the plan of the file or of the checkpoint; without both, make one for this net."""
    path = wanted.plan
    if path is None and wanted.resume and wanted.checkpoint is not None:
        path = wanted.checkpoint / PLAN

    def graph(batch: int) -> Net:
        optimizer = wanted.optimizer or DEFAULT
        own = settings_of_rank(batch, optimizer, wanted.seed, wanted.fold, _half(wanted))
        return net_under_load(net, own, comm, place, wanted.options.timeout, beat=beat)

    if path is not None:
        plan = agree.on_all_ranks(lambda: read_plan(path), comm)
    elif wanted.made is not None:
        plan = wanted.made
    else:
        asked = wanted.strategy, wanted.params, wanted.batch
        plan = profile_and_plan(graph, *asked, samples, comm, wanted.make)
    check_strategy(plan, wanted.strategy)
    return plan


def check_end(plan: Plan, steps: int) -> None:
    """Reject a number of steps that ends a DASO training in the middle of an epoch."""
    batches = int(STRATEGIES[plan.strategy].settings(plan).get("batches", 1))
    if steps % batches:
        nearest = max(batches, round(steps / batches) * batches)
        raise Agreed(
            f"--steps must be a multiple of {batches}, the plan's batches per epoch, after which"
            f" all ranks hold the same parameters, got {steps}; nearest: {nearest}"
        )


def data_of(wanted: TrainRequest, net: TrainableNet) -> Data:
    """Load the training and the held-out samples of the net."""
    data = DATA[net.data](wanted.fold)
    return data.validation() if wanted.validate else data


def settings_of(wanted: TrainRequest, plan: Plan, steps: int) -> Settings:
    """Return the settings of a training: the user's, or else the defaults for the plan."""
    planned = STRATEGIES[plan.strategy].settings(plan)
    optimizer = wanted.optimizer or str(planned.get("optimizer", "adam"))
    return Settings(
        optimizer=optimizer,
        rate=RATES[optimizer] if wanted.rate is None else wanted.rate,
        batch=wanted.batch,
        seed=wanted.seed,
        fold=wanted.fold,
        half=_half(wanted),
        schedule=wanted.schedule,
        steps=steps,
    )


def _half(wanted: TrainRequest) -> bool:
    """Tell whether layers compute in 16 bits."""
    return (wanted.precision or PRECISION.get(wanted.strategy)) == "fp16"


def _options(wanted: TrainRequest, samples: int) -> TrainOptions:
    if wanted.epochs is None:
        return wanted.options
    steps = max(1, round(wanted.epochs * (samples // wanted.batch)))
    return replace(wanted.options, steps=steps)


def _last(store: Store, folder: Path) -> tuple[Manifest, dict[str, Any]]:
    """Return the last whole checkpoint and this rank's values."""
    found = store.last(unpacked)
    if found is None:
        raise Agreed(f"{folder} holds no checkpoint to resume from; leave out --resume")
    return found


def _checkpoint_flags(
    net: TrainableNet, settings: Settings, wanted: TrainRequest
) -> dict[str, Any]:
    """Return the flags that decide the training's bits; a plan is compared by its hash."""
    planned = {} if wanted.method is None else {"--method": wanted.method}
    return (
        planned
        | {
            "--net": net.name,
            "--optimizer": settings.optimizer,
            "--rate": settings.rate,
            "--batch": settings.batch,
            "--seed": settings.seed,
            "--fold": settings.fold,
            "--precision": PRECISIONS[settings.half],
        }
        | schedule_flags(settings.schedule, settings.steps, wanted.options.evaluate)
        | ({} if wanted.device == "cpu" else {"--device": wanted.device})
    )


def schedule_flags(schedule: RateSchedule, steps: int, evaluate: int) -> dict[str, str | int]:
    """Return the flags of a schedule that decide a training's bits; {} for a constant rate."""
    if schedule == CONSTANT:
        return {}
    more = {"cosine": {"--steps": steps}, "plateau": {"--evaluate": evaluate}}
    return {"--schedule": schedule.text, **more.get(schedule.kind, {})}


def _log(
    wanted: TrainRequest,
    net: TrainableNet,
    plan: Plan,
    made: Mapping[str, Any],
    first: int,
    rank: int,
) -> TrainingLog | None:
    if wanted.log is None or rank:
        return None
    header = LogHeader(
        net=net.name,
        strategy=plan.strategy,
        plan=plan.hash,
        ranks=plan.machine.size,
        made=dict(made),
    )
    return TrainingLog(wanted.log, header, first if wanted.resume else None)


def _bar(steps: int) -> Callable[[LogRow], None]:
    show = progress_bar("train", steps)
    return lambda row: show(row.step + 1, "" if row.loss is None else f"loss {row.loss:.3f}")


def _result(
    training: Training, learner: Trainee, plan: Plan, options: TrainOptions, comm: MPI.Intracomm
) -> dict[str, Any] | None:
    """Return the training's result on rank 0; all ranks raise if their parameters differ."""
    end = common_digest if learner.alike else digest_per_rank
    parameters = end(learner.whole(MpiNeighbours(comm)), comm)
    own = training.sent / max(training.logged, 1)
    sent = agree.gather_numbers(own, comm)
    if comm.rank:
        return None
    rows, held = list(training.rows), training.held
    last = rows[-1] if rows else None
    return {
        "net": learner.net.name,
        "strategy": plan.strategy,
        "plan": plan.hash,
        "ranks": comm.size,
        "steps": options.steps,
        "loss": last.loss if last else None,
        "accuracy": last.accuracy if last else None,
        "held_out_loss": held.loss if held else None,
        "held_out_accuracy": held.accuracy if held else None,
        "step_seconds": float(np.median([row.seconds for row in rows])) if rows else None,
        "sent_bytes_per_step": own if rows else None,
        "sent_mean_bytes": float(np.mean(sent)),
        "skipped_steps": learner.skipped,
        "alike": learner.alike,
        "parameters": parameters,
    }
