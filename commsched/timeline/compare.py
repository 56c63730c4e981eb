"""The comparison of a predicted and a measured timeline of one plan, operation by operation."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from commsched import units
from commsched.arrays import Bools, Floats, Ints
from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.attribute import Why, attribute
from commsched.timeline.cycles import cycle, same_steps, totals, windows
from commsched.timeline.header import fabric_differences
from commsched.timeline.model import Timeline
from commsched.timeline.spread import Interval, interval
from commsched.timeline.totals import NO_ITERATION, Totals, median


@dataclass(frozen=True, slots=True)
class PredictedAndMeasured:
    """One quantity on both sides."""

    predicted: float
    measured: float

    @property
    def difference(self) -> float:
        """Predicted minus measured: above zero where the prediction is too high."""
        return self.predicted - self.measured

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None if the measured value is 0."""
        return self.predicted / self.measured if self.measured else None

    @property
    def error(self) -> float | None:
        """The difference as a share of the measured value."""
        return self.difference / self.measured if self.measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation, by name: mean over the ranks that have it, median over the steps."""

    name: str
    stream: str
    seconds: PredictedAndMeasured
    waited: PredictedAndMeasured  # s of waiting for a peer; NaN: unknown, see `doubt`
    nbytes: PredictedAndMeasured  # B, mean over the ranks and steps that have the operation
    below_clock: bool  # shorter than the clocks' uncertainty: its position in time means nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All compared quantities; seconds are medians over the compared steps, see `Totals`."""

    plan_hash: str
    ranks: int
    sides: tuple[str, str]  # see `sides_of`
    totals: tuple[Totals, Totals]
    iteration: PredictedAndMeasured  # s
    exposed: PredictedAndMeasured  # s of communication while compute was idle, mean over ranks
    hidden: PredictedAndMeasured  # s of communication under compute, mean over ranks
    sent: PredictedAndMeasured  # B handed to MPI by a rank
    streams: tuple[tuple[str, PredictedAndMeasured], ...]  # s busy in one step, mean over ranks
    operations: tuple[Operation, ...]  # in program order
    only_predicted: tuple[str, ...]
    only_measured: tuple[str, ...]
    within: tuple[tuple[str, str], ...]  # of these: predicted operations with their seconds
    clock_uncertainty: float  # s
    doubt: str | None  # why waiting and transfer cannot be separated; None: they can
    warnings: tuple[str, ...]
    interval: Interval | None  # of the predicted iteration; None: both sides are measured
    why: Why | None  # the iteration's error in parts; None: `doubt`, or no rank has all steps


def compare(predicted: Timeline, measured: Timeline, skip_first: int = 1) -> Comparison:
    """Compare operations by name, without the first `skip_first` steps of a side that has more.

    The first step warms up connections and caches. Names that only one side has are listed. If
    the sides repeat operations after different numbers of steps, only common steps count.
    """
    check_comparable(predicted, measured)
    names = sides_of(predicted, measured)
    for what, t in zip(names, (predicted, measured), strict=True):
        if len(measure.steps(t)) < 2:
            raise CommschedError(NO_ITERATION.format(kind=what))
    predicted, measured = same_steps(predicted, measured, skip_first)
    whole = [(t, measure.settled(t, skip_first)) for t in (predicted, measured)]
    uncertainty = max(predicted.clock_uncertainty, measured.clock_uncertainty)
    doubts = [_doubt(t, keep) for t, keep in whole]
    common, fewer = _common(predicted, measured)
    sides = [(t, measure.settled(t, skip_first)) for t in common]
    p, m = (_side(t, keep, doubt is None) for (t, keep), doubt in zip(sides, doubts, strict=True))
    streams = dict.fromkeys((*predicted.streams, *measured.streams))
    busy = [_busy(t, keep) for t, keep in sides]
    doubt = doubts[1] or doubts[0]
    found = [totals(t, skip_first) for t in (predicted, measured)]

    only_measured = tuple(name for name in m.index if name not in p.index)

    def both(values: Sequence[Sequence[float]]) -> PredictedAndMeasured:
        return PredictedAndMeasured(*(float(median(side) or 0.0) for side in values))

    return Comparison(
        plan_hash=measured.plan_hash,
        ranks=measured.ranks,
        sides=names,
        totals=(found[0], found[1]),
        iteration=both([side.iteration for side in found]),
        exposed=both([side.exposed for side in found]),
        hidden=both([side.hidden for side in found]),
        sent=both([side.sent for side in found]),
        streams=tuple(
            (s, PredictedAndMeasured(*(side.get(s, 0.0) for side in busy))) for s in streams
        ),
        operations=tuple(_operations(p, m, uncertainty)),
        only_predicted=tuple(name for name in p.index if name not in m.index),
        only_measured=only_measured,
        within=tuple(
            pair for pair in predicted.prediction.within.items() if pair[0] in only_measured
        ),
        clock_uncertainty=uncertainty,
        doubt=doubt,
        warnings=(
            *filter(None, (*doubts, fewer, _unlike(*found))),
            *predicted.warnings,
            *measured.warnings,
            *fabric_differences(predicted.header, measured.header),
        ),
        interval=None
        if predicted.kind == "measured"
        else interval(found[0], predicted.prediction.residuals),
        why=None if doubt else attribute(predicted, measured, skip_first, (found[0], found[1])),
    )


def _common(*sides: Timeline) -> tuple[list[Timeline], str]:
    """Return two timelines on their common ranks, and a warning if a file has fewer ranks."""
    one, other = map(measure.ranks_seen, sides)
    both = np.intersect1d(one, other)
    whole = np.array_equal(one, other)
    shared = [t if whole else t.select(np.isin(t.rank, both)) for t in sides]
    if any(len(measure.steps(t)) < 2 for t in shared):
        return list(sides), "operations and busy seconds of each side are of other ranks"
    held = units.count(len(both), "rank")
    told = f"operations and busy seconds are of the {held} that both files hold"
    return shared, told if len(both) < sides[0].ranks else ""


def _unlike(one: Totals, other: Totals) -> str:
    """Return a warning if the sides count unlike steps, which `same_steps` could not mend."""
    if one.steps == other.steps or one.cycle == other.cycle:
        return ""
    return (
        f"the sides count unlike steps, {one.statistic} and {other.statistic}; simulate as many"
        " steps as the other file has"
    )


def swapped(predicted: Timeline, measured: Timeline) -> bool:
    """Tell whether two timelines were given in the wrong order, by their kinds."""
    return predicted.kind == "measured" and measured.kind == "predicted"


def sides_of(predicted: Timeline, measured: Timeline) -> tuple[str, str]:
    """Name two timelines for a user: by their kinds, or by their order if both are of one kind."""
    kinds = predicted.kind, measured.kind
    return kinds if kinds[0] != kinds[1] else ("first", "second")


def check_comparable(predicted: Timeline, measured: Timeline) -> None:
    """Reject timelines of different plans or numbers of ranks, and empty ones."""
    first, second = sides_of(predicted, measured)
    for what, t in ((first, predicted), (second, measured)):
        if not len(t):
            raise CommschedError(
                f"the {what} timeline has no spans, so there is nothing to compare"
            )
    if predicted.plan_hash != measured.plan_hash:
        raise CommschedError(
            f"the timelines are of different plans: {first} {predicted.plan_hash[:12]!r}, "
            f"{second} {measured.plan_hash[:12]!r}; simulate the plan that was run"
        )
    if predicted.ranks != measured.ranks:
        raise CommschedError(
            f"the timelines are of {predicted.ranks} ranks ({first}) and {measured.ranks} "
            f"({second}); both must have as many as the plan"
        )


def _doubt(t: Timeline, keep: Bools) -> str | None:
    """Explain why waiting is unknown if the median exchange is below the clocks' uncertainty.

    keep: (steps,), mask of the counted steps.
    """
    if not t.clock_uncertainty:
        return None
    compared = keep[np.searchsorted(measure.steps(t), t.step)] & measure.communicates(t)
    if not compared.any():
        return None
    typical = _median((t.end - t.start)[compared])
    if t.clock_uncertainty <= typical:
        return None
    return (
        f"the clocks of the {t.kind} timeline are uncertain by"
        f" {units.seconds(t.clock_uncertainty)}, more than the {units.seconds(typical)} that an"
        " exchange lasts (median), so that waiting cannot be told from transfer: waiting and the"
        " parts of the error are left out; run it again with less else on these hosts, or with"
        " larger buckets"
    )


def _median(values: Floats) -> float:
    return float(np.median(values))


def _busy(t: Timeline, keep: Bools) -> dict[str, float]:
    per_step = measure.busy(t).mean(axis=0)[keep].T  # (streams, steps)
    means = windows(per_step, cycle(t, keep))
    return dict(zip(t.streams, np.median(means, axis=-1).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class _Side:
    """Means over ranks and medians over steps of one side, (names,); NaN: unknown."""

    seconds: Floats
    waited: Floats
    nbytes: Floats
    index: dict[str, int]
    stream: dict[str, str]


def _side(t: Timeline, keep: Bools, waiting: bool) -> _Side:
    """Return one side; `waiting`: whether the side's waiting is known."""
    column = np.searchsorted(measure.steps(t), t.step)
    t, column = t.select(keep[column]), column[keep[column]]
    key, inverse, count = np.unique(
        t.name.astype(np.int64) * len(keep) + column, return_inverse=True, return_counts=True
    )
    name = key // len(keep)
    size = len(t.names)

    def over_steps(values: Floats) -> Floats:
        return _median_by(name, np.bincount(inverse, values, len(key)) / count, size)

    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN: the name has no span
        nbytes = np.bincount(t.name, t.nbytes, size) / np.bincount(t.name, minlength=size)
    names, first = np.unique(t.name, return_index=True)
    streams = {t.names[i]: t.streams[t.stream[k]] for i, k in zip(names, first, strict=True)}
    index = {t.names[i]: int(i) for i in names}
    waited = over_steps(t.waited) if waiting else np.full(size, np.nan)
    return _Side(over_steps(t.end - t.start), waited, nbytes, index, streams)


def _median_by(group: Ints, values: Floats, groups: int) -> Floats:
    """Return (groups,) the median of the values of each group, NaN for an empty one."""
    order = np.lexsort((values, group))
    count = np.bincount(group, minlength=groups)
    first = np.cumsum(count) - count
    medians = np.full(groups, np.nan)
    some = count > 0
    low = values[order[first[some] + (count[some] - 1) // 2]]
    medians[some] = (low + values[order[first[some] + count[some] // 2]]) / 2
    return medians


def _operations(p: _Side, m: _Side, uncertainty: float) -> Iterator[Operation]:
    for name, i in p.index.items():
        if name in m.index:
            k = m.index[name]
            yield Operation(
                name=name,
                stream=m.stream[name],
                seconds=PredictedAndMeasured(float(p.seconds[i]), float(m.seconds[k])),
                waited=PredictedAndMeasured(float(p.waited[i]), float(m.waited[k])),
                nbytes=PredictedAndMeasured(float(p.nbytes[i]), float(m.nbytes[k])),
                below_clock=bool(m.seconds[k] < uncertainty),
            )
