"""The learning rate of a case, chosen on a validation part of the training data."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from commsched.lab.convergence.table import Tried
from commsched.train import trials
from commsched.train.trials import OneTraining, mean, spent

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the table's rate
BEYOND = 2.0  # factor to a further rate while the best rate is the smallest or largest
MOST = 9  # rates of a case


def tuned(
    words: Sequence[str],
    rate: float,
    stem: Path,
    seeds: int,
    train: Callable[[Sequence[str]], None],
    before: Sequence[Tried] = (),
) -> tuple[Tried, ...]:
    """Train with each rate on fold 0 without using the samples that the fold holds out.

    FACTORS give the first rates; `beyond` gives further ones. `before` are rates tried earlier; a
    rate tried with fewer seeds is tried again. `words` are the command of the trainings without
    rate, folds and seeds. The next call goes on from finished trainings, which stay in the files
    `rates_beside` the stem.
    """
    found = {one.rate: one for one in before}

    def measure(each: float) -> None:
        path = stem.with_name(f"{stem.name}.rate-{each:g}.json")
        more = ["--rate", repr(each), "--sweep", str(path), "--folds", "1", "--seeds", str(seeds)]
        train([*words, *more, "--validate"])
        found[each] = _tried(each, trials.read(path).trials)

    for each in sorted({rate * factor for factor in FACTORS} | set(found)):
        if each not in found or found[each].trainings < seeds:
            measure(each)
    while (new := beyond(found)) is not None:
        measure(new)
    return tuple(found[each] for each in sorted(found))


def beyond(found: Mapping[float, Tried]) -> float | None:
    """Return a rate beyond the best one if that is the smallest or largest; None: no more rates."""
    top = best(list(found.values()))
    if len(found) >= MOST or top not in (min(found), max(found)):
        return None
    return top / BEYOND if top == min(found) else top * BEYOND


def best(tried: Sequence[Tried]) -> float:
    """Return the rate with the least loss; the smallest rate if all trainings diverged."""
    return min(tried, key=lambda one: (one.loss is None, one.loss or 0.0, one.rate)).rate


def rates_beside(stem: Path) -> list[Path]:
    """Return the files of finished trainings, one for each rate."""
    return sorted(stem.parent.glob(f"{stem.name}.rate-*.json"))


def _tried(rate: float, found: Sequence[OneTraining]) -> Tried:
    losses = [trial.end.loss for trial in found]
    whole = [loss for loss in losses if loss is not None]
    return Tried(
        rate=rate,
        loss=mean(whole).value if len(whole) == len(losses) else None,
        accuracy=mean([trial.end.accuracy for trial in found]).value,
        trainings=len(found),
        seconds=spent(found),
    )
