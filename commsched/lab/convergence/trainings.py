"""Train the missing cases of the convergence table, one job per case."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from commsched import files
from commsched.errors import CommschedError
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence.cases import TABLES, Case, cases, plan_of, rate_of
from commsched.lab.convergence.table import ConvergenceTable
from commsched.lab.convergence.tuning import best, forget, tuned
from commsched.plan import file as plan_file
from commsched.run.job import start as job
from commsched.train import trials

LIMIT = 3600.0  # s allowed for the trainings of one case
TABLE = "table.json"

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ConvergenceRequest:
    """The cases to train and time."""

    table: str  # one of TABLES
    names: Sequence[str] = ()  # of cases; empty: all
    hosts: int = 2
    lanes: int = 2
    folds: int = 5  # at most
    seeds: int = 5
    tune: bool = False  # choose each case's rate on a validation part of the training data
    time_limit: float = float("inf")  # s for all that is trained now; after it, no run is timed

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


def train(wanted: ConvergenceRequest, folder: Path, say: Say) -> ConvergenceTable:
    """Train the missing cases, and write the table after each case.

    A case whose plan has changed is trained again. A case that fails is reported and left out.
    At the end of the time limit a training is stopped; the next call makes it again.
    """
    begun, table = time.monotonic(), kept(wanted, folder)
    end = begun + wanted.time_limit
    files.make_folder(path_of(wanted, folder).parent)
    requested = chosen(wanted)
    for number, case in enumerate(requested):
        try:
            found = _trained(wanted, case, table.case(case.name), folder, end)
        except CommschedError as error:
            if time.monotonic() < end:
                say(f"{case.name}: {error}")
                continue
            say(
                f"{len(requested) - number} of {len(requested)} cases are left; the same"
                " command goes on"
            )
            break
        table = table.with_case(found)
        convergence.write(path_of(wanted, folder), table)
        spent = time.monotonic() - begun
        say(
            f"[{number + 1}/{len(requested)}, {spent:.0f} s] {case.name}:"
            f" {len(found.trained.trials)} trainings, accuracy {found.accuracy}"
        )
    return table


def _trained(
    wanted: ConvergenceRequest,
    case: Case,
    old: convergence.CaseResult | None,
    folder: Path,
    end: float,
) -> convergence.CaseResult:
    """Return the case with all of its trainings.

    An error after `end`, on the monotonic clock, leaves the finished ones in their file.
    """

    def train_in_one_process(words: Sequence[str]) -> None:
        """Let all ranks be of one process, which gives equal bits in a fraction of the time."""
        left = end - time.monotonic()
        if left <= 0:
            raise CommschedError("no time is left")
        job.commsched(1, [*words, "--together"], min(LIMIT, left), quiet=True)

    net = TABLES[wanted.table]
    plan = plan_of(case, net, wanted.hosts, wanted.lanes)
    stem = folder / wanted.table / case.name.replace(":", "-")
    path, sweep = stem.with_name(f"{stem.name}.plan.json"), stem.with_name(f"{stem.name}.json")
    plan_file.write(path, plan)
    words = ["train", "--net", net.name, "--strategy", case.strategy, "--plan", str(path)]
    words += ["--steps", str(net.steps), "--evaluate", str(net.period), "--batch", str(net.batch)]
    # The net's seconds are proportions, which say nothing of this machine.
    words += ["--optimizer", case.optimizer, "--force-size"]
    planned = old is not None and old.trained.plan == plan.hash
    tried = old.tuned if old is not None and planned else ()
    if wanted.tune:
        tried = tuned(words, rate_of(case, net), stem, net.tries, train_in_one_process, tried)
    rate = best(tried) if tried else rate_of(case, net)
    same = old is not None and planned and old.trained.made.get("--rate", rate) == rate
    times = old.times if old is not None and planned else ()
    if old is not None and same and not sweep.exists():
        trials.write(sweep, old.trained)
    words += ["--rate", repr(rate)]
    folds = min(net.folds, wanted.folds)
    words += ["--sweep", str(sweep), "--folds", str(folds), "--seeds", str(wanted.seeds)]
    train_in_one_process(words)
    found = trials.read(sweep)
    assert found.plan == plan.hash, "the job has checked it"
    for each in (path, sweep):
        each.unlink()
    forget(stem)
    return convergence.CaseResult(
        name=case.name,
        family=case.family,
        strategy=case.strategy,
        method=case.words,
        trained=found,
        times=times,
        tuned=tried,
        cosines=old.cosines if old is not None and same else (),
    )
