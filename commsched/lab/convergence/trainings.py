"""Trainings of the missing cases of the convergence table, one job per case."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from commsched import files
from commsched.errors import CommschedError, install
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.cases import Case, cases, plan_of, rate_of
from commsched.lab.convergence.table import ConvergenceTable
from commsched.lab.convergence.tables import TABLES, CaseNet
from commsched.lab.convergence.tuning import best, rates_beside, tuned
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.run.job import start as job
from commsched.train import trials
from commsched.train.trials import Trainings

LIMIT = 3600.0  # s allowed for the trainings of one case
OVER = ("no time is left",)
TABLE = "table.json"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ConvergenceRequest:
    """The cases to train and time."""

    table: str  # one of TABLES
    names: Sequence[str] = ()  # of cases; empty: all
    hosts: int = 2
    folds: int = 5  # at most
    seeds: int = 5
    tune: bool = False  # choose each case's rate on a validation part of the training data
    time_limit: float = float("inf")  # s for all trainings of a call; then no step is timed

    @property
    def lanes(self) -> int:
        """Return the ranks of a host."""
        return TABLES[self.table].lanes

    @property
    def ranks(self) -> int:
        """Return the ranks on all hosts."""
        return self.hosts * self.lanes


def chosen(wanted: ConvergenceRequest) -> list[Case]:
    """Return the requested cases."""
    known = {case.name: case for case in cases(wanted.table)}
    for name in wanted.names:
        if name not in known:
            raise CommschedError(f"--case must be one of {', '.join(known)}, got {name!r}")
    return [known[name] for name in wanted.names or known]


def path_of(wanted: ConvergenceRequest, folder: Path) -> Path:
    """Return the path of a table."""
    return folder / wanted.table / TABLE


def kept(wanted: ConvergenceRequest, folder: Path) -> ConvergenceTable:
    """Read the table, or return an empty one."""
    path, net = path_of(wanted, folder), TABLES[wanted.table]
    nothing = ConvergenceTable(net=net.name, ranks=wanted.ranks, steps=net.steps)
    if not path.exists():
        return nothing
    found = convergence.read(path)
    for word, new in (("net", nothing.net), ("ranks", nothing.ranks), ("steps", nothing.steps)):
        if getattr(found, word) != new:
            old = getattr(found, word)
            raise CommschedError(f"{path}: its {word} is {old!r}, not {new!r}; give another folder")
    return found


def train(
    wanted: ConvergenceRequest,
    folder: Path,
    say: Say,
    beside: Executor | None = None,
    fail: Say | None = None,
) -> ConvergenceTable:
    """Train the missing cases, here or by processes `beside`, and write the table after each case.

    A case whose plan or settings have changed is trained again. A case that fails is left out and
    reported, to `fail` if given. At the time limit all trainings stop; the next call repeats the
    unfinished ones.
    """
    begun, table = time.monotonic(), kept(wanted, folder)
    end = begun + wanted.time_limit
    files.make_folder(path_of(wanted, folder).parent)
    requested, left = chosen(wanted), 0
    tasks = [_TrainingTask(wanted, case, table.case(case.name), folder, end) for case in requested]
    for number, (name, found) in enumerate(_tried(tasks, beside)):
        if isinstance(found, CommschedError):
            left += found.args == OVER
            if found.args != OVER:
                (fail or say)(f"{name}: {found}")
            continue
        table = _in_order(table.with_case(found), wanted.table)
        convergence.write(path_of(wanted, folder), table)
        _clear(_stem(wanted, name, folder))
        spent = time.monotonic() - begun
        say(
            f"[{number + 1}/{len(requested)}, {spent:.0f} s] {name}:"
            f" {len(found.trained.trials)} trainings, accuracy {found.accuracy}"
        )
    if left:
        say(f"{left} of {len(requested)} cases are left; the same command goes on")
    return table


def _in_order(table: ConvergenceTable, name: str) -> ConvergenceTable:
    """Return a table with its cases in the order of `cases`."""
    order = {case.name: place for place, case in enumerate(cases(name))}
    found = sorted(table.cases, key=lambda case: order.get(case.name, len(order)))
    return msgspec.structs.replace(table, cases=tuple(found))


class _TrainingTask(NamedTuple):
    """A case to train."""

    wanted: ConvergenceRequest
    case: Case
    old: convergence.CaseResult | None
    folder: Path
    end: float  # s of the monotonic clock


_Result = tuple[str, convergence.CaseResult | CommschedError]


def _tried(tasks: Sequence[_TrainingTask], beside: Executor | None) -> Iterator[_Result]:
    """Yield each case's name with its result or its error, in the order of completion."""
    if beside is None:
        yield from map(_attempt, tasks)
        return
    for done in as_completed([beside.submit(_attempt, task) for task in tasks]):
        yield done.result()


def _attempt(task: _TrainingTask) -> _Result:
    try:
        return task.case.name, _trained(*task)
    except CommschedError as error:
        over = time.monotonic() >= task.end
        return task.case.name, CommschedError(*OVER) if over else error


def _trained(
    wanted: ConvergenceRequest,
    case: Case,
    old: convergence.CaseResult | None,
    folder: Path,
    end: float,
) -> convergence.CaseResult:
    """Return the case with all of its trainings.

    Finished trainings stay in files until `_clear`; an interrupted case goes on from these files.
    After `end` (monotonic clock) the function may raise an error.
    """

    def train_in_time(words: Sequence[str]) -> None:
        left = end - time.monotonic()
        if left <= 0:
            raise CommschedError(*OVER)
        start(wanted, words, min(LIMIT, left))

    net = TABLES[wanted.table]
    plan = plan_of(case, net, wanted.hosts, wanted.lanes)
    stem = _stem(wanted, case.name, folder)
    path, sweep = _plan_beside(stem), _trained_beside(stem)
    plan_file.write(path, plan)
    words = words_of(case, net, path)
    planned = old is not None and old.trained.plan == plan.hash
    tried = old.tuned if old is not None and planned else ()
    if wanted.tune:
        once = [*words, "--evaluate", str(net.steps)]  # tuning compares only final losses
        for left in rates_beside(stem):
            _drop_other(left, plan, once)
        tried = tuned(once, rate_of(case, net), stem, net.tries, train_in_time, tried)
    rate = best(tried) if tried else rate_of(case, net)
    words += ["--rate", repr(rate)]
    same = old is not None and _fits(old.trained, plan, words)
    times = old.times if old is not None and planned else ()
    _drop_other(sweep, plan, words)
    if old is not None and same and not sweep.exists():
        trials.write(sweep, old.trained)
    folds, seeds = min(net.folds, wanted.folds), min(net.seeds, wanted.seeds)
    words += ["--sweep", str(sweep), "--folds", str(folds), "--seeds", str(seeds)]
    train_in_time(words)
    found = trials.read(sweep)
    assert found.plan == plan.hash, "the job has checked it"
    return convergence.CaseResult(
        name=case.name,
        family=case.family,
        strategy=case.strategy,
        method=case.words,
        trained=found,
        times=times,
        tuned=tried,
        cosines=old.cosines if old is not None and same else (),
        again=old.again if old is not None and same else None,
    )


def _stem(wanted: ConvergenceRequest, name: str, folder: Path) -> Path:
    """Return the common beginning of the paths of a case's files."""
    return folder / wanted.table / name.replace(":", "-")


def _plan_beside(stem: Path) -> Path:
    return stem.with_name(f"{stem.name}.plan.json")


def _trained_beside(stem: Path) -> Path:
    """Return the path of a case's finished trainings."""
    return stem.with_name(f"{stem.name}.json")


def _clear(stem: Path) -> None:
    """Remove the files of a case that the table now contains."""
    for path in (_plan_beside(stem), _trained_beside(stem), *rates_beside(stem)):
        path.unlink(missing_ok=True)


def _drop_other(path: Path, plan: Plan, words: Sequence[str]) -> None:
    """Remove the file that an interrupted training with another plan or settings has left."""
    if path.exists() and not _fits(trials.read(path), plan, words):
        path.unlink()


def _fits(found: Trainings, plan: Plan, words: Sequence[str]) -> bool:
    """Tell whether trainings used a plan and a command's settings; a flag's last value counts."""
    asked = dict(pairwise(words))
    made = {"--schedule": "constant", **found.made}  # a constant rate is not recorded
    same = (str(value) == asked.get(flag, str(value)) for flag, value in made.items())
    return found.plan == plan.hash and all(same)


def start(wanted: ConvergenceRequest, words: Sequence[str], limit: float) -> None:
    """Run the command of a case's trainings for at most `limit` s.

    One process trains all ranks of our own nets: the results are bit-identical, and it is faster.
    PyTorch nets have a process per rank.
    """
    if not TABLES[wanted.table].by_torch:
        job.commsched(1, [*words, "--together"], limit, quiet=True)
        return
    if find_spec("torch") is None:
        raise CommschedError(f"table {wanted.table!r} trains by PyTorch; {install('torch')}")
    command = [sys.executable, "-m", "commsched.lab.peers.digits", *words[1:]]
    job.run(wanted.ranks, command, limit, quiet=True)


def words_of(case: Case, net: CaseNet, plan: Path) -> list[str]:
    """Return the command of a case's trainings without rate, folds and seeds."""
    words = ["train", "--net", net.name, "--strategy", case.strategy, "--plan", str(plan)]
    words += ["--steps", str(net.steps), "--evaluate", str(net.period), "--batch", str(net.batch)]
    words += ["--optimizer", case.optimizer, "--schedule", net.schedule]
    # The net's seconds are only proportions: the size estimated from them means nothing.
    return [*words, "--force-size"]
