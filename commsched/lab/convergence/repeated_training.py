"""The repetition of each case's first training: a check of its numbers, and its cost."""

import tempfile
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import msgspec

from commsched.errors import CommschedError
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.cases import Case, plan_of
from commsched.lab.convergence.table import CaseResult
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.trainings import (
    LIMIT,
    ConvergenceRequest,
    Say,
    chosen,
    kept,
    path_of,
    start,
    words_of,
)
from commsched.plan import file as plan_file
from commsched.train import trials
from commsched.train.trials import OneTraining


def train_again(
    wanted: ConvergenceRequest, folder: Path, say: Say, beside: Executor | None = None
) -> int:
    """Repeat the first training of each recorded case, here or by processes `beside`.

    The table keeps both trainings. Return the number of cases whose numbers differ or whose
    training failed.
    """
    table = kept(wanted, folder)
    known = [(case, old) for case in chosen(wanted) if (old := table.case(case.name)) is not None]
    make = partial(_made_again, wanted)
    made = map(make, known) if beside is None else beside.map(make, known)
    different = 0
    for (case, old), found in zip(known, made, strict=True):
        if isinstance(found, CommschedError):
            different += 1
            say(f"{case.name}: {found}")
            continue
        table = table.with_case(msgspec.structs.replace(old, again=found))
        convergence.write(path_of(wanted, folder), table)
        first = old.trained.trials[0]
        step = left_at(first, found)
        different += step is not None
        ends = f"loss at the end {found.end.loss}, recorded {first.end.loss}"
        other = f"other numbers from step {step} on; {ends}"
        say(f"{case.name}: {'every number as recorded' if step is None else other}")
    return different


def left_at(old: OneTraining, new: OneTraining) -> int | None:
    """Return the step whose score is the first that differs; the last step if only bytes do."""
    pairs = zip(old.held_out, new.held_out, strict=True)
    last = old.end.steps if old.sent_bytes != new.sent_bytes else None
    return next((one.steps for one, other in pairs if one != other), last)


def _made_again(
    wanted: ConvergenceRequest, known: tuple[Case, CaseResult]
) -> OneTraining | CommschedError:
    """Repeat one training."""
    case, old = known
    net, first = TABLES[wanted.table], old.trained.trials[0]
    plan = plan_of(case, net, wanted.hosts, wanted.lanes)
    if plan.hash != old.trained.plan:
        return CommschedError("its plan has changed, so that it is trained anew without --again")
    with tempfile.TemporaryDirectory() as scratch:
        path, sweep = Path(scratch, "plan.json"), Path(scratch, "sweep.json")
        plan_file.write(path, plan)
        # The sweep makes only the training that the file lacks.
        others = tuple(trial for trial in old.trained.trials if trial is not first)
        trials.write(sweep, msgspec.structs.replace(old.trained, trials=others))
        words = [*words_of(case, net, path), "--rate", repr(old.trained.made["--rate"])]
        words += ["--sweep", str(sweep), "--folds", "1", "--seeds", "1"]
        try:
            start(wanted, words, LIMIT)
        except CommschedError as error:
            return error
        found = trials.read(sweep).trials[-1]
        assert found.key == first.key
        return found
