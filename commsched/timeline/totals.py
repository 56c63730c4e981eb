"""The time and traffic of one step of a timeline, equal for every command, file and page.

docs/reference/glossary.md defines the words for users.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from commsched import units
from commsched.arrays import Floats

Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Amounts = tuple[Amount, ...]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
LOW, HIGH = 0.1, 0.9
NO_ITERATION = (
    "the {kind} timeline has one step, but an iteration lasts until the next step begins; use"
    " --steps of at least 3"
)


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """A mean step of each window of the counted steps, one number per window.

    A window is one step if all counted steps have equal operations. Otherwise it is one cycle of a
    strategy that exchanges every few steps, or all counted steps if they do not contain two cycles.
    """

    steps: Count  # in the timeline; the first and the last do not count
    counted: Count
    cycle: Count  # steps in a window
    iteration: Amounts  # s from a step's start on the last rank to that of the next step
    exposed: Amounts  # s of communication while the rank computes nothing, a mean over the ranks
    hidden: Amounts  # s of communication under computing, a mean over the ranks
    bubble: Amounts = ()  # s in which nothing runs, a mean over the ranks; empty: no pipeline
    sent: Amounts  # B that a rank hands to MPI, a mean over the ranks

    def __post_init__(self) -> None:
        windows = self.counted - self.cycle + 1 if self.counted else 0
        for what in ("iteration", "exposed", "hidden", "bubble", "sent"):
            if len(getattr(self, what)) not in ((0, windows) if what == "bubble" else (windows,)):
                raise ValueError(f"{what} must have {windows} numbers, one of each window")

    @property
    def statistic(self) -> str:
        """Describe the statistic of the numbers, such as `median of 9 of 11 steps`."""
        steps = f"{self.counted} of {units.count(self.steps, 'step')}"
        if self.cycle == 1:
            return f"median of {steps}"
        if len(self.iteration) == 1:
            return f"mean of {steps}, whose operations do not repeat"
        return f"median of cycles of {self.cycle} steps in {steps}"


def p10_to_p90(values: Floats, errors: int) -> tuple[float, float]:
    """Return p10 and p90 of a future value, from values that depend on n observed errors.

    The k-th smallest of n errors is the k / (n + 1) quantile of the next error, which therefore
    lies outside p10 to p90 of the n errors in more than two of ten cases.
    Source: Hyndman & Fan, The American Statistician 50(4), 1996, definition 6.
    """
    if not errors:
        low, high = np.quantile(values, (LOW, HIGH)).tolist()
        return low, high
    share = max(0.0, ((errors + 1) * LOW - 0.5) / errors)
    # "hazen": the k-th of n values is the quantile (k - 1/2) / n.
    low, high = np.quantile(values, (share, 1.0 - share), method="hazen").tolist()
    return low, high


def median(values: Sequence[float]) -> float | None:
    """Return the median over the windows; None if no step was counted."""
    return float(np.median(values)) if len(values) else None


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return a quantile over the windows; None if no step was counted."""
    return float(np.quantile(values, share)) if len(values) else None


def totals_data(found: Totals) -> dict[str, Any]:
    """Return the statistics as JSON data, in s and B; None is unknown."""
    return {
        "steps": found.steps,
        "counted_steps": found.counted,
        "cycle_steps": found.cycle,
        "statistic": found.statistic,  # of every "median" below
        "iteration_median_seconds": median(found.iteration),
        "iteration_p10_seconds": quantile(found.iteration, LOW),
        "iteration_p90_seconds": quantile(found.iteration, HIGH),
        "exposed_median_seconds": median(found.exposed),
        "hidden_median_seconds": median(found.hidden),
        "bubble_median_seconds": median(found.bubble),
        "sent_median_bytes": median(found.sent),
    }


def totals_lines(found: Mapping[str, Any]) -> list[str]:
    """Return `totals_data` as lines of text."""
    iteration = found["iteration_median_seconds"]
    if iteration is None:
        return ["no iteration: a step lasts until the next one begins, and there is only one step"]
    low, high = found["iteration_p10_seconds"], found["iteration_p90_seconds"]
    spread = ""
    if high - low > 1e-6 * iteration:
        spread = f", p10 {units.seconds(low)}, p90 {units.seconds(high)}"
    bubble = found["bubble_median_seconds"]
    left = "the first and the last" if found["steps"] > 2 else "the last"
    text = [
        f"iteration {units.seconds(iteration)}{spread} ({found['statistic']}, without {left})",
        f"communication per rank and step: exposed"
        f" {units.seconds(found['exposed_median_seconds'])},"
        f" hidden {units.seconds(found['hidden_median_seconds'])},"
        f" sent {units.nbytes(found['sent_median_bytes'])}",
    ]
    if bubble:
        text.append(f"bubble per step: {units.seconds(bubble)} ({bubble / iteration:.1%})")
    return text
