"""The learning rate of a case, chosen on a validation part of the training data."""

from collections.abc import Callable, Sequence
from pathlib import Path

from commsched.lab.convergence.table import Tried
from commsched.train import trials
from commsched.train.trials import Trial, mean

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the table's rate
SEEDS = 2


def tuned(
    words: Sequence[str], rate: float, stem: Path, train: Callable[[Sequence[str]], None]
) -> tuple[Tried, ...]:
    """Train with each rate on fold 0 without looking at what that fold holds out.

    `words` are the command of the trainings without rate, folds and seeds. Finished trainings stay
    in files beside `stem` until `forget`, so that the next call goes on.
    """
    found = []
    for each, path in _files(rate, stem):
        more = ["--rate", repr(each), "--sweep", str(path), "--folds", "1", "--seeds", str(SEEDS)]
        train([*words, *more, "--validate"])
        found.append(_tried(each, trials.read(path).trials))
    return tuple(found)


def best(tried: Sequence[Tried]) -> float:
    """Return the rate with the least loss; the smallest rate if all trainings diverged."""
    return min(tried, key=lambda one: (one.loss is None, one.loss or 0.0, one.rate)).rate


def forget(rate: float, stem: Path) -> None:
    """Remove the files of finished trainings."""
    for _, path in _files(rate, stem):
        path.unlink(missing_ok=True)


def _files(rate: float, stem: Path) -> list[tuple[float, Path]]:
    rates = [rate * factor for factor in FACTORS]
    return [(each, stem.with_name(f"{stem.name}.rate-{each:g}.json")) for each in rates]


def _tried(rate: float, found: Sequence[Trial]) -> Tried:
    losses = [trial.end.loss for trial in found]
    whole = [loss for loss in losses if loss is not None]
    return Tried(
        rate=rate,
        loss=mean(whole).value if len(whole) == len(losses) else None,
        accuracy=mean([trial.end.accuracy for trial in found]).value,
    )
