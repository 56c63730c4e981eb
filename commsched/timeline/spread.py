"""How sure a prediction is: intervals of its iteration, and whether two plans can be told apart."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from commsched import units
from commsched.errors import CommschedError
from commsched.timeline import measure
from commsched.timeline.assumed import assumed
from commsched.timeline.fabric import differences
from commsched.timeline.intervals import Floats
from commsched.timeline.model import Timeline
from commsched.timeline.report import aligned

LOW, HIGH = 0.1, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Where the measured iteration lies in eight of ten cases: p10 to p90, s."""

    low: float
    high: float
    residuals: int  # how many held-out errors are in it; 0: the spread of the steps only

    def __str__(self) -> str:
        return f"{units.seconds(self.low)} to {units.seconds(self.high)}"

    @property
    def basis(self) -> str:
        """Say what the interval is made of."""
        if not self.residuals:
            return "that is the spread of the steps only: the machine file has no held-out errors"
        return (
            f"that is the spread of the steps and {self.residuals} held-out errors of calibration"
        )

    def overlaps(self, other: "Interval") -> bool:
        """Tell whether they share a moment."""
        return self.low <= other.high and other.low <= self.high

    def to_data(self) -> dict[str, Any]:
        """Return plain data, with units in the keys."""
        return {
            "p10_ms": units.significant(self.low * 1e3),
            "p90_ms": units.significant(self.high * 1e3),
            "residuals": self.residuals,
        }


def interval(t: Timeline, skip_first: int = 1) -> Interval:
    """Return the interval of a predicted timeline's iteration.

    It holds p10 to p90 of  I / (1 + e)  over all steps' I [s] and all residuals e, the relative
    errors (predicted - measured) / measured that the calibration of the machine held out. Without
    residuals e = 0: only the spread of the steps under jitter is in it.
    """
    iterations: Floats = measure.iteration_seconds(t)[measure.settled(t, skip_first)]
    errors = np.array(assumed(t).residuals or [0.0])
    values = np.divide.outer(iterations, 1.0 + errors)
    low, high = np.quantile(values, (LOW, HIGH)).tolist()
    return Interval(low=low, high=high, residuals=len(assumed(t).residuals))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """The prediction of one plan; seconds are medians over the steps."""

    plan_hash: str
    strategy: str
    iteration: float  # s
    exposed: float  # s of communication while compute was idle, mean over ranks
    interval: Interval
    warnings: tuple[str, ...]

    def row(self) -> list[str]:
        """Return the cells of its line in a table."""
        return [
            f"plan {self.plan_hash[:12]}",
            self.strategy,
            f"{self.iteration * 1e3:.3f}",
            f"{self.interval.low * 1e3:.3f}",
            f"{self.interval.high * 1e3:.3f}",
            f"{self.exposed * 1e3:.3f}",
        ]

    def to_data(self) -> dict[str, Any]:
        """Return plain data, with units in the keys."""
        return {
            "plan_hash": self.plan_hash,
            "strategy": self.strategy,
            "iteration_ms": units.significant(self.iteration * 1e3),
            "interval": self.interval.to_data(),
            "exposed_communication_ms": units.significant(self.exposed * 1e3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rivals:
    """Two predicted plans of the same net on the same machine."""

    plans: tuple[Rival, Rival]
    elsewhere: tuple[str, ...] = ()  # how the fabrics differ on which the machine was calibrated

    @property
    def indistinguishable(self) -> bool:
        """Whether the intervals overlap."""
        a, b = self.plans
        return a.interval.overlaps(b.interval)

    @property
    def verdict(self) -> str:
        """Say which plan is faster, or that they cannot be told apart."""
        fast, slow = sorted(self.plans, key=lambda plan: plan.iteration)
        a, b = (plan.interval for plan in self.plans)
        if self.indistinguishable:
            return f"the plans are indistinguishable: their intervals, {a} and {b}, overlap"
        saved = 1.0 - fast.iteration / slow.iteration
        return (
            f"plan {fast.plan_hash[:12]} is faster: its iteration is {saved:.1%} shorter, and the"
            " intervals do not overlap"
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader must know of either plan, once each."""
        said = [w for plan in self.plans for w in plan.warnings]
        return tuple(dict.fromkeys([*said, *self.elsewhere]))

    @property
    def _basis(self) -> str:
        counts = [plan.interval.residuals for plan in self.plans]
        if not any(counts):
            return "intervals hold the spread of the steps only: the machine has no held-out errors"
        shown = " and ".join(map(str, counts))
        return f"intervals hold the spread of the steps and {shown} held-out errors of calibration"

    def table(self) -> str:
        """Return aligned text."""
        head = ["in ms", "strategy", "iteration", "p10", "p90", "exposed communication"]
        lines = aligned([head, *(plan.row() for plan in self.plans)], left=2)
        lines += ["", self.verdict, self._basis]
        return "\n".join([*lines, *(f"warning: {sentence}" for sentence in self.warnings)])

    def to_data(self) -> dict[str, Any]:
        """Return plain data, with units in the keys."""
        return {
            "plans": [plan.to_data() for plan in self.plans],
            "indistinguishable": self.indistinguishable,
            "verdict": self.verdict,
            "warnings": list(self.warnings),
        }


def rivals(a: Timeline, b: Timeline, skip_first: int = 1) -> Rivals:
    """Compare the predictions of two plans for the same net on the same machine."""
    for what in ("net", "machine"):
        first, second = (str(t.meta.get(what)) for t in (a, b))
        if first != second:
            raise CommschedError(
                f"the timelines are of different {what}s, {first!r} and {second!r}; two plans are"
                " compared on the same net and machine"
            )
    plans = (_rival(a, skip_first), _rival(b, skip_first))
    return Rivals(plans=plans, elsewhere=differences(a, b))


def _rival(t: Timeline, skip_first: int) -> Rival:
    if not len(t):
        raise CommschedError("a timeline has no spans, so there is nothing to compare")
    keep = measure.settled(t, skip_first)
    return Rival(
        plan_hash=t.plan_hash,
        strategy=str(t.meta.get("strategy", "-")),
        iteration=float(np.median(measure.iteration_seconds(t)[keep])),
        exposed=float(np.median(measure.exposed(t).mean(axis=0)[keep])),
        interval=interval(t, skip_first),
        warnings=t.warnings,
    )
