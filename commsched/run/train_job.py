"""A training from its command line to its result: plan, net, data, log, checkpoints."""

import hashlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from mpi4py import MPI

from commsched.data import DATA
from commsched.data.order import check_batch
from commsched.errors import CommschedError
from commsched.ir import Graph
from commsched.nets import NETS, Net
from commsched.nets.optimizers import RATES, find_optimizer
from commsched.nets.profile import profiled
from commsched.plan import Plan
from commsched.plan import file as plan_file
from commsched.run import agree
from commsched.run.checkpoint import PLAN, Store
from commsched.run.communication import say
from commsched.run.learner import Learner, Settings, on_host
from commsched.run.measured import check_writable
from commsched.run.session import check_timeout, guarded
from commsched.run.summary import summary
from commsched.run.train import Options, Training
from commsched.run.watchdog import end_together, watchdog
from commsched.strategies import STRATEGIES
from commsched.timeline.training import Header, Log, Row

# Strategy -> the worker that performs its programs.
TRAINED = {"sync": Learner, "daso": Learner}
PRECISIONS = ("fp32", "fp16")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the command line asks for; None where it leaves a choice."""

    net: str
    strategy: str
    plan: Path | None
    method: str | None  # of the plan that is made
    optimizer: str | None
    rate: float | None
    batch: int
    seed: int
    fold: int
    precision: str
    epochs: float | None  # instead of the options' steps
    log: Path | None
    figure: Path | None
    checkpoint: Path | None
    resume: bool
    options: Options
    make: Callable[[Graph, int], Plan]  # of a net and a number of ranks, where no plan is given


def train_job(wanted: Wanted, progress: bool) -> dict[str, Any] | None:
    """Train on all ranks; the result on rank 0, None on the others."""
    comm = MPI.COMM_WORLD
    check_timeout(wanted.options.timeout)
    end_together("train", wanted.options.timeout)
    with guarded(comm):
        return _train(wanted, comm, progress)


def _train(wanted: Wanted, comm: MPI.Intracomm, progress: bool) -> dict[str, Any] | None:
    agree.check_launcher()
    with watchdog(comm, "train", wanted.options.timeout) as dog:
        net = agree.together(lambda: _checked(wanted), comm)
        dog.stage("reading the data")
        data = agree.together(lambda: DATA[net.data](wanted.fold), comm)
        agree.together(lambda: check_batch(wanted.batch, len(data.train), comm.size), comm)
        dog.stage("planning")
        plan = _plan(wanted, net, comm)
        agree.check_plan(plan, comm)
        settings = settings_of(wanted, plan)
        options = _options(wanted, len(data.train))
        _check_end(wanted, plan, options.steps)
        worker = TRAINED[plan.strategy]
        learner = agree.together(lambda: worker(net, data, plan, settings, comm.rank), comm)
        made = _made(net, settings, wanted.method)
        store, manifest = None, None
        if wanted.checkpoint is not None:
            store = Store(wanted.checkpoint, plan, made, comm)
            manifest = store.begin(wanted.resume)
        first = 0 if manifest is None else manifest.step
        log = agree.together(lambda: _log(wanted, net, plan, made, first, comm.rank), comm)
    if plan.max_error and comm.rank == 0:
        say("a training does not watch the plan's error budget; 'commsched run' does")
    if progress and comm.rank == 0 and sys.stderr.isatty():
        options = replace(options, progress=_bar(options.steps, first))
    training = Training(learner, plan, comm, log, store, options)
    if manifest is not None:
        training.resume(manifest)
    timeline = training.run()
    if log is not None:
        log.close()
    found = _result(training, learner, plan, options, comm)
    if found is not None and timeline is not None and len(timeline):
        found["measured"] = summary(timeline)
    return found


def _checked(wanted: Wanted) -> Net:
    """What can be checked before anything is made."""
    options = wanted.options
    if wanted.strategy not in TRAINED:
        STRATEGIES[wanted.strategy]
        known = ", ".join(TRAINED)
        raise CommschedError(f"strategy {wanted.strategy!r} cannot be trained; known: {known}")
    if wanted.precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
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
    return NETS[wanted.net]


def _plan(wanted: Wanted, net: Net, comm: MPI.Intracomm) -> Plan:
    """The plan that is given or kept in the checkpoint, or one made for the net as it is here."""
    path = wanted.plan
    if path is None and wanted.resume and wanted.checkpoint is not None:
        path = wanted.checkpoint / PLAN
    if path is not None:
        plan = agree.together(lambda: plan_file.read(path), comm)
    else:

        def make() -> bytes:
            if comm.rank:
                return b""
            graph = profiled(net, wanted.batch // comm.size, wanted.seed, wanted.fold)
            return msgspec.json.encode(plan_file.to_data(wanted.make(graph, comm.size)))

        text = agree.told(agree.together(make, comm), comm)
        plan = plan_file.from_data(msgspec.json.decode(text), "the plan")
    if plan.strategy != wanted.strategy:
        raise agree.Agreed(
            f"the plan is of strategy {plan.strategy!r}, --strategy says {wanted.strategy!r}"
        )
    return plan


def _check_end(wanted: Wanted, plan: Plan, steps: int) -> None:
    """Refuse what a strategy that averages parameters cannot do yet, or not at any step."""
    if plan.strategy == "sync":
        return
    if wanted.checkpoint is not None:
        raise agree.Agreed(
            f"--checkpoint is for strategy 'sync', got {plan.strategy!r}: what is under way between"
            " nodes cannot be kept; train without it"
        )
    batches = int(STRATEGIES[plan.strategy].settings(plan)["batches"])
    if steps % batches:
        nearest = max(batches, round(steps / batches) * batches)
        raise agree.Agreed(
            f"--steps must be a multiple of {batches}, the plan's batches per epoch, after which"
            f" all ranks hold the same parameters, got {steps}; nearest: {nearest}"
        )


def settings_of(wanted: Wanted, plan: Plan) -> Settings:
    """What a training depends on: what was asked for, else what suits the plan."""
    optimizer = wanted.optimizer or str(STRATEGIES[plan.strategy].settings(plan)["optimizer"])
    return Settings(
        optimizer=optimizer,
        rate=RATES[optimizer] if wanted.rate is None else wanted.rate,
        batch=wanted.batch,
        seed=wanted.seed,
        fold=wanted.fold,
        half=wanted.precision == "fp16",
    )


def _options(wanted: Wanted, samples: int) -> Options:
    if wanted.epochs is None:
        return wanted.options
    steps = max(1, round(wanted.epochs * (samples // wanted.batch)))
    return replace(wanted.options, steps=steps)


def _made(net: Net, settings: Settings, method: str | None) -> dict[str, Any]:
    """What the training's bits depend on, by the flags that say it; a plan has its hash besides."""
    planned = {} if method is None else {"--method": method}
    return planned | {
        "--net": net.name,
        "--optimizer": settings.optimizer,
        "--rate": settings.rate,
        "--batch": settings.batch,
        "--seed": settings.seed,
        "--fold": settings.fold,
        "--precision": PRECISIONS[settings.half],
    }


def _log(
    wanted: Wanted, net: Net, plan: Plan, made: Mapping[str, Any], first: int, rank: int
) -> Log | None:
    if wanted.log is None or rank:
        return None
    header = Header(
        net=net.name,
        strategy=plan.strategy,
        plan=plan.hash,
        ranks=plan.machine.size,
        made=dict(made),
    )
    return Log(wanted.log, header, first if wanted.resume else None)


def _bar(steps: int, first: int) -> Callable[[Row], None]:
    from tqdm import tqdm

    bar = tqdm(total=steps, initial=first, unit="step", desc="train")

    def show(row: Row) -> None:
        bar.set_postfix_str("" if row.loss is None else f"loss {row.loss:.3f}", refresh=False)
        bar.update(row.step + 1 - bar.n)

    return show


def _result(
    training: Training, learner: Learner, plan: Plan, options: Options, comm: MPI.Intracomm
) -> dict[str, Any] | None:
    """What came out, on rank 0; ranks whose parameters differ are refused on all of them."""
    content = hashlib.sha256()
    for name in sorted(learner.values):
        content.update(on_host(learner.values[name]).tobytes())
    own = float(np.mean([row.sent_bytes for row in training.rows])) if training.rows else 0.0
    sent = agree.each(own, comm)
    digests = agree.gather_text(content.hexdigest(), comm)
    if len(set(digests)) > 1:
        odd = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
        raise agree.Agreed(f"rank {odd} holds other parameters than rank 0 at the end")
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
        "bytes_per_rank_and_step": float(np.mean(sent)),
        "skipped_steps": learner.skipped,
        "parameters": digests[0],
    }
