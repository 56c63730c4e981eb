"""Uncertainty of predictions: intervals of iterations, and whether two plans can be told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commsched import units
from commsched.errors import CommschedError
from commsched.timeline.cycles import totals
from commsched.timeline.header import fabric_differences
from commsched.timeline.model import Timeline
from commsched.timeline.totals import NO_ITERATION, Totals, median, p10_to_p90


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The limits of the measured iteration in eight of ten cases: p10 to p90, s."""

    low: float
    high: float
    residuals: int  # number of held-out errors in it; 0: the spread of the steps only

    def __str__(self) -> str:
        return f"{units.seconds(self.low)} to {units.seconds(self.high)}"

    @property
    def basis(self) -> str:
        """Describe the data of the interval."""
        if not self.residuals:
            return "that is the spread of the steps only: the machine file has no held-out errors"
        return (
            f"that is the spread of the steps and {self.residuals} held-out errors of calibration"
        )

    def overlaps(self, other: "Interval") -> bool:
        """Tell whether two intervals overlap."""
        return self.low <= other.high and other.low <= self.high


def interval(found: Totals, residuals: Sequence[float]) -> Interval | None:
    """Return the interval of a predicted iteration: p10 to p90 of

        I - X + X f + H max(f - 1, 0),    f = 1 / (1 + e)

    over the iterations I [s] of all counted steps, their exposed communication X [s], and all
    residuals e, the relative errors (predicted - measured) / measured of the exchanges that the
    calibration of the machine held out. H [s] is hidden communication: if exchanges last f times as
    long, at most H (f - 1) s more are exposed. Without residuals e = 0: the interval is only the
    spread of the steps under jitter. Return None without a counted step.
    """
    if not found.iteration:
        return None
    iteration = np.array(found.iteration)
    exposed = np.minimum(found.exposed, iteration)
    factor = 1.0 / (1.0 + np.array(residuals or (0.0,)))
    waited = np.multiply.outer(exposed, factor)
    waited += np.multiply.outer(found.hidden, np.maximum(factor - 1.0, 0.0))
    low, high = p10_to_p90((iteration - exposed)[:, np.newaxis] + waited, len(residuals))
    return Interval(low=low, high=high, residuals=len(residuals))


def interval_data(found: Interval | None) -> dict[str, Any]:
    """Return an interval as JSON data; None is unknown."""
    return {
        "interval_p10_seconds": None if found is None else found.low,
        "interval_p90_seconds": None if found is None else found.high,
        "interval_held_out_errors": 0 if found is None else found.residuals,
    }


def interval_lines(found: Mapping[str, Any]) -> list[str]:
    """Return `interval_data` as text, if it includes held-out errors."""
    if not found["interval_held_out_errors"]:
        return []
    sure = Interval(
        low=found["interval_p10_seconds"],
        high=found["interval_p90_seconds"],
        residuals=found["interval_held_out_errors"],
    )
    return [f"p10 to p90 of the iteration of a run: {sure}; {sure.basis}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The prediction of one plan; seconds are of one step, see `Totals`."""

    plan_hash: str
    strategy: str
    batches: int  # batches of the net in a step
    iteration: float  # s
    exposed: float  # s of communication while compute was idle, mean over ranks
    statistic: str  # statistic of both medians
    interval: Interval
    warnings: tuple[str, ...]

    @property
    def seconds_per_batch(self) -> float:
        """The iteration divided by its batches."""
        return self.iteration / self.batches

    @property
    def interval_per_batch(self) -> Interval:
        """The interval divided by the batches."""
        low, high = (limit / self.batches for limit in (self.interval.low, self.interval.high))
        return replace(self.interval, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Two predicted plans of the same net on the same machine."""

    plans: tuple[Rival, Rival]
    fabrics: tuple[str, ...] = ()  # differences of the fabrics of the machines' calibrations

    @property
    def indistinguishable(self) -> bool:
        """Tell whether the intervals per batch overlap."""
        a, b = (plan.interval_per_batch for plan in self.plans)
        return a.overlaps(b)

    @property
    def verdict(self) -> str:
        """Say which plan is faster, per batch if their steps differ, or that it cannot be told."""
        fast, slow = sorted(self.plans, key=lambda plan: plan.seconds_per_batch)
        alike = fast.batches == slow.batches
        a, b = (plan.interval if alike else plan.interval_per_batch for plan in self.plans)
        if self.indistinguishable:
            per = "" if alike else " of a batch"
            return f"the plans are indistinguishable: their intervals{per}, {a} and {b}, overlap"
        saved = f"{1.0 - fast.seconds_per_batch / slow.seconds_per_batch:.1%}"
        why = f"its iteration is {saved} shorter"
        if not alike:
            steps = f"a step has {fast.batches} instead of {slow.batches}"
            why = f"a batch takes {saved} less time ({steps})"
        return f"plan {fast.plan_hash[:12]} is faster: {why}, and the intervals do not overlap"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of both plans, each once."""
        a, b = self.plans
        return tuple(dict.fromkeys((*a.warnings, *b.warnings, *self.fabrics)))


def are_rivals(a: Timeline, b: Timeline) -> bool:
    """Tell whether both timelines are predictions of different plans."""
    return a.kind == b.kind == "predicted" and a.plan_hash != b.plan_hash


def rivals(a: Timeline, b: Timeline, skip_first: int = 1) -> Rivals:
    """Compare the predictions of two plans for the same net on the same machine."""
    words = "nets", "machines", "numbers of ranks"
    each = ((t.header.net, t.header.machine, t.ranks) for t in (a, b))
    for what, first, second in zip(words, *each, strict=True):
        if first != second:
            raise CommschedError(
                f"the timelines are of different {what}, {first!r} and {second!r}; two plans are"
                " compared on the same net and machine"
            )
    plans = (_rival(a, skip_first), _rival(b, skip_first))
    return Rivals(plans=plans, fabrics=fabric_differences(a.header, b.header))


def _rival(t: Timeline, skip_first: int) -> Rival:
    if not len(t):
        raise CommschedError("a timeline has no spans, so there is nothing to compare")
    found = totals(t, skip_first)
    iteration, exposed = median(found.iteration), median(found.exposed)
    sure = interval(found, t.prediction.residuals)
    if iteration is None or exposed is None or sure is None:
        raise CommschedError(NO_ITERATION.format(kind=t.kind))
    return Rival(
        plan_hash=t.plan_hash,
        strategy=t.header.strategy or "-",
        batches=t.prediction.batches or t.ranks,
        iteration=iteration,
        exposed=exposed,
        statistic=found.statistic,
        interval=sure,
        warnings=t.warnings,
    )
