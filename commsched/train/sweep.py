"""Successive trainings of one plan: every fold with every seed; each result is saved at once."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from mpi4py import MPI

from commsched import training_log as training
from commsched.errors import CommschedError, NotFiniteError
from commsched.files import check_writable
from commsched.plan.model import Plan
from commsched.program.read_plan import read_plan
from commsched.run.job import agree
from commsched.run.session import errors_end_the_job
from commsched.train import trials
from commsched.train.agreed_plan import check_strategy
from commsched.train.in_process import InProcessTraining
from commsched.train.job import (
    PRECISIONS,
    TRAINED,
    TrainRequest,
    check_end,
    checked,
    data_of,
    schedule_flags,
    settings_of,
    train_job,
)
from commsched.train.registry import NETS
from commsched.train.training import finite_or_none
from commsched.train.trials import HeldOutScore, OneTraining, Trainings


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The trainings of a sweep, and the file of their results."""

    path: Path
    folds: range
    seeds: range
    together: bool = False  # all ranks of the plan in this one process


def sweep(wanted: TrainRequest, chosen: Sweep) -> Trainings | None:
    """Train with the folds and seeds that the file lacks; rank 0 returns all trainings.

    All ranks call it. Codecs draw random numbers from the seed of the training.
    """
    comm = MPI.COMM_WORLD
    with errors_end_the_job(comm):
        assert wanted.plan is not None
        plan = agree.on_all_ranks(lambda: read_plan(wanted.plan or ""), comm)
        agree.on_all_ranks(lambda: _check(wanted, chosen, plan), comm)
        known = agree.on_all_ranks(lambda: _known(wanted, chosen, plan, comm.rank), comm)
        left = agree.broadcast_data(_left(known, chosen), comm, list[tuple[int, int]])
        if (check := wanted.check) is not None:
            agree.on_all_ranks(lambda: check(plan, wanted.options.steps * len(left)), comm)
    wanted = replace(wanted, check=None)
    for fold, seed in left:
        known = _one(wanted, chosen, plan, known, fold, seed)
    return known if comm.rank == 0 else None


def _check(wanted: TrainRequest, chosen: Sweep, plan: Plan) -> None:
    """Reject options with which the plan cannot be trained."""
    checked(wanted)
    check_strategy(plan, wanted.strategy)
    check_end(plan, wanted.options.steps)
    if chosen.together and plan.max_error:
        raise CommschedError(
            "--together does not watch the plan's error budget; use mpiexec, or plan without"
            " --max-error"
        )
    net, zero = plan.net, plan.strategy.startswith("zero") or plan.params.get("zero")
    if chosen.together and (zero or net.tensor > 1 or net.experts > 1):
        raise CommschedError(
            "--together evaluates the whole net on each rank, and ranks of this plan have parts of"
            " it; use mpiexec"
        )


def _known(wanted: TrainRequest, chosen: Sweep, plan: Plan, rank: int) -> Trainings:
    """Return the file's results on rank 0; reject a file of other trainings."""
    made: dict[str, str | int | float | bool] = {
        "--net": wanted.net,
        "--batch": wanted.batch,
        "--precision": PRECISIONS[settings_of(wanted, plan, wanted.options.steps).half],
        "--evaluate": wanted.options.evaluate,
        "--steps": wanted.options.steps,
    }
    optional = {"--optimizer": wanted.optimizer, "--rate": wanted.rate}
    optional |= {} if wanted.device == "cpu" else {"--device": wanted.device}
    made |= {flag: value for flag, value in optional.items() if value is not None}
    made |= {"--validate": True} if wanted.validate else {}
    made |= schedule_flags(wanted.schedule, wanted.options.steps, wanted.options.evaluate)
    nothing = Trainings(plan=plan.hash, made=made)
    if chosen.together and MPI.COMM_WORLD.size > 1:
        raise CommschedError("--together trains all ranks in one process; start one, not more")
    if rank:
        return nothing
    check_writable(chosen.path)
    if not chosen.path.exists():
        return nothing
    found = trials.read(chosen.path)
    if (found.plan, found.made) != (nothing.plan, nothing.made):
        raise CommschedError(f"{chosen.path}: holds other trainings; give another file")
    return found


def _left(known: Trainings, chosen: Sweep) -> list[tuple[int, int]]:
    there = {trial.key for trial in known.trials}
    return [(f, s) for f in chosen.folds for s in chosen.seeds if (f, s) not in there]


def _one(
    wanted: TrainRequest, chosen: Sweep, plan: Plan, known: Trainings, fold: int, seed: int
) -> Trainings:
    """Train once, and add the result to the file."""
    seeded = replace(plan, seed=seed)
    trained = _together if chosen.together else _by_ranks
    found = trained(replace(wanted, fold=fold, seed=seed), seeded)
    if found is None:
        return known
    known = msgspec.structs.replace(known, trials=(*known.trials, found))
    trials.write(chosen.path, known)
    return known


def _together(wanted: TrainRequest, plan: Plan) -> OneTraining:
    """Train all ranks of a plan in this process; after a divergence the loss stays None."""
    begun, net, options = time.process_time(), NETS[wanted.net], wanted.options
    settings = settings_of(wanted, plan, wanted.options.steps)
    ranks = InProcessTraining(net, data_of(wanted, net), plan, settings, TRAINED[plan.strategy])
    held_out, diverged, sent = list[HeldOutScore](), False, 0.0
    for step in range(options.steps):
        try:
            if not diverged:
                ranks.step(step)
                sent = ranks.sent / ((step + 1) * plan.machine.size)
        except NotFiniteError:
            diverged = True
        if (step + 1) % options.evaluate == 0 or step + 1 == options.steps:
            score = ranks.evaluate(counts=(step + 1) % options.evaluate == 0)
            loss = None if diverged else finite_or_none(score.loss / score.guesses)
            accuracy = score.correct / score.guesses
            held_out.append(HeldOutScore(steps=step + 1, loss=loss, accuracy=accuracy))
    return OneTraining(
        fold=wanted.fold,
        seed=wanted.seed,
        held_out=tuple(held_out),
        sent_bytes=sent,
        seconds=round(time.process_time() - begun, 2),
    )


def _by_ranks(wanted: TrainRequest, plan: Plan) -> OneTraining | None:
    """Train with the ranks of this job; return None on all but rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl") if MPI.COMM_WORLD.rank == 0 else None
        found = train_job(replace(wanted, plan=None, made=plan, log=log), False)
        if found is None or log is None:
            return None
        held_out = tuple(
            HeldOutScore(steps=line.step + 1, loss=line.loss, accuracy=line.accuracy)
            for line in training.read(log)
            if isinstance(line, training.HeldOutRow)
        )
    sent = float(found["sent_mean_bytes"])
    return OneTraining(fold=wanted.fold, seed=wanted.seed, held_out=held_out, sent_bytes=sent)
