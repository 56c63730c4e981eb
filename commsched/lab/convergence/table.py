"""The convergence table: accuracy, bytes, and step time on a testbed of each case."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec

from commsched import files
from commsched.train.trials import Mean, OneTraining, Trainings, mean
from commsched.training_log import Count, Positive, Share

Word = Annotated[str, msgspec.Meta(min_length=1)]


class Moved(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a launch per step and rank: coding and exchange, without waiting for others."""

    launch: Word
    tensors: tuple[Word, ...]
    density: Positive  # of one rank's gradient, as planned
    predicted: Positive
    measured: Positive


class StepTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a step with emulated compute, on a testbed; means over all steps but the first."""

    ratio: Word  # name of a ratio of compute to exchanges
    value: Positive  # s of compute per s of exchanges
    scale: Positive  # elements per element of the net that was trained
    compute: Positive  # s a step and rank
    jitter: Positive  # sigma of the log-normal factor on compute, per rank and step
    testbed: Word  # hosts, lanes and rate
    plan: Word  # hash
    steps: Count
    predicted: Positive  # mean elapsed seconds of a step
    measured: Positive
    low: Positive  # p10 of the measured iterations; `high` is p90
    high: Positive
    sent_bytes: Positive  # per rank and step, as measured
    state_bytes: Positive  # of the rank that has most: parameters, gradients, optimiser, buckets
    launches: tuple[Moved, ...]

    def moved(self, tensor: str = "") -> tuple[float, float]:
        """Return predicted and measured s of all launches, or of those with a tensor."""
        launches = [x for x in self.launches if not tensor or tensor in x.tensors]
        return sum(x.predicted for x in launches), sum(x.measured for x in launches)


class Tried(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A learning rate and its results on samples held out from the training data."""

    rate: Positive
    loss: float | None  # nats, mean over trainings; null if one diverged
    accuracy: Share
    trainings: Count
    seconds: Positive | None = None  # of a processor, for all trainings


class LayerCosine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The cosine of a layer's local gradient with the whole net's gradient, a mean over seeds."""

    layer: Word
    curve: tuple[Annotated[float, msgspec.Meta(ge=-1.001, le=1.001)], ...]  # before; each period


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A case: how it is trained, its results, and its step times."""

    name: Word
    family: Word
    strategy: Word
    method: str
    trained: Trainings
    times: tuple[StepTimes, ...] = ()
    tuned: tuple[Tried, ...] = ()  # by rate; empty: the rate is the table's
    cosines: tuple[LayerCosine, ...] = ()  # of local losses
    again: OneTraining | None = None  # the first training, made once more

    @property
    def accuracy(self) -> Mean:
        """Return the final accuracy on held-out data."""
        return mean([trial.end.accuracy for trial in self.trained.trials])

    @property
    def losses(self) -> list[float]:
        """Return the held-out losses at the end, nats, of the trainings that did not diverge."""
        ends = (trial.end.loss for trial in self.trained.trials)
        return [loss for loss in ends if loss is not None]

    @property
    def sent_bytes(self) -> float:
        """Return the bytes that a rank sends per step."""
        return mean([trial.sent_bytes for trial in self.trained.trials]).value


class ConvergenceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All cases of one net."""

    format: Literal["commsched-convergence/1"] = "commsched-convergence/1"
    net: Word
    ranks: Count
    steps: Count
    cases: tuple[CaseResult, ...] = ()

    @property
    def by_loss(self) -> bool:
        """Tell whether cases are compared by loss, as for text and pixels, or by accuracy."""
        return self.net.startswith(("words", "bigrams", "gpt", "autoencoder"))

    def with_case(self, case: CaseResult) -> "ConvergenceTable":
        """Replace the case of this name, or append it."""
        names = [old.name for old in self.cases]
        cases = [case if old.name == case.name else old for old in self.cases]
        return msgspec.structs.replace(self, cases=(*cases, *[case] * (case.name not in names)))

    def case(self, name: str) -> CaseResult | None:
        """Return the case with this name."""
        return next((case for case in self.cases if case.name == name), None)

    def against_dense(self, case: CaseResult) -> "Against | None":
        """Compare a case with dense sums; None without them."""
        dense = self.case("dense")
        return None if dense is None else against(case, dense)

    def times(self, name: str, ratio: str) -> StepTimes | None:
        """Return the step times of a case at a ratio."""
        case = self.case(name)
        return None if case is None else next((x for x in case.times if x.ratio == ratio), None)


def read(path: Path) -> ConvergenceTable:
    """Read a table."""
    return files.read(path, ConvergenceTable)


def write(path: Path, table: ConvergenceTable) -> None:
    """Write a table."""
    files.write(path, msgspec.to_builtins(table))


class Against(NamedTuple):
    """The comparison of a case with the dense case, by pairs of trainings."""

    accuracy: Mean  # difference of the accuracies
    steps: int | None  # steps until the mean loss is at most the dense case's final loss


def against(case: CaseResult, dense: CaseResult) -> Against | None:
    """Compare trainings of equal fold and seed; None without such trainings."""
    there = {trial.key: trial for trial in dense.trained.trials}
    pairs = [
        (trainings, there[trainings.key])
        for trainings in case.trained.trials
        if trainings.key in there
    ]
    if not pairs:
        return None
    differences = [trainings.end.accuracy - other.end.accuracy for trainings, other in pairs]
    bar = _mean_loss([other for _, other in pairs], -1)
    trainings = [trial for trial, _ in pairs]
    points = range(min(len(trial.held_out) for trial in trainings))
    reached = (
        trainings[0].held_out[i].steps
        for i in points
        if bar is not None and (loss := _mean_loss(trainings, i)) is not None and loss <= bar
    )
    return Against(mean(differences), next(reached, None))


def differences(case: CaseResult, other: CaseResult) -> list[float]:
    """Return the differences of final losses by training, without diverged trainings."""
    there = {trial.key: trial.end.loss for trial in other.trained.trials}
    pairs = ((own.end.loss, there.get(own.key)) for own in case.trained.trials)
    return [mine - theirs for mine, theirs in pairs if mine is not None and theirs is not None]


def _mean_loss(trials: Sequence[OneTraining], place: int) -> float | None:
    """Return the mean loss at one point of the curves; None if a training has diverged."""
    losses = [trial.held_out[place].loss for trial in trials]
    return None if None in losses else mean([loss for loss in losses if loss is not None]).value


def families(cases: Iterable[CaseResult]) -> list[str]:
    """Return the families in the order of the cases."""
    return list(dict.fromkeys(case.family for case in cases))
