"""How sure a margin is, and whether a plan compresses."""

import numpy as np

from commsched.plan.model import Plan, Reason
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy

LOW, HIGH = 0.1, 0.9
NOTHING = 1e-4  # share of the iteration that is not worth a word


def margin_interval(plan: Plan, reason: Reason) -> tuple[float, float] | None:
    """p10 and p90 of a margin, s; None where the machine has no held-out errors.

        margin + r / (1 + e) - r - (c / (1 + e') - c)

    c, r [s] = the chosen method and the runner-up alone; e, e' = all pairs of the relative
    errors (predicted - measured) / measured that the calibration of the machine held out: two
    prices err independently.
    """
    if not plan.machine.held_out or not reason.runner_up:
        return None
    errors = np.array([cell.error for cell in plan.machine.held_out])
    off = 1.0 / (1.0 + errors) - 1.0
    values = np.subtract.outer(reason.runner_up_seconds * off, reason.seconds * off)
    low, high = np.quantile(reason.margin + values, (LOW, HIGH)).tolist()
    return low, high


def advice(plan: Plan) -> str:
    """Say whether to compress, and for which launch the opposite would cost how much."""
    if isinstance(STRATEGIES[plan.strategy], PipelineStrategy):
        return ""  # what is exchanged follows from the strategy
    told = [
        (launch, launch.reason)
        for launch in plan.launches
        if launch.reason is not None and not launch.purpose
    ]
    if not told:
        return ""
    packed = [pair for pair in told if _packs(pair[0].method)]
    known = [
        (reason.opposite_margin, launch.name, reason.opposite)
        for launch, reason in packed or told
        if reason.opposite
    ]
    if packed:
        start = f"compress {len(packed)} of {len(told)} launches: "
        if not known:
            return start + "nothing else is allowed for them"
        return start + f"without, the iteration would take up to {_cost(*max(known))} longer"
    if not known:
        return "do not compress: no method that does is allowed"
    hidden = [other for other in known if other[0] <= NOTHING * plan.iteration]
    if len(hidden) == len(known):
        return "do not compress: it would gain nothing, the exchanges are hidden"
    if hidden:
        return (
            f"do not compress: it would gain nothing for {len(hidden)} of {len(known)} launches,"
            f" and cost up to {_cost(*max(known))} for the others"
        )
    if len(known) == 1:
        return f"do not compress: the best codec would cost {_cost(*known[0])}"
    return (
        f"do not compress: for one launch the best codec would cost {_cost(*min(known))} to"
        f" {_cost(*max(known))}"
    )


def _cost(margin: float, launch: str, method: str) -> str:
    return f"{margin * 1e3:+.3g} ms ({launch}, {method})"


def _packs(method: str) -> bool:
    """Tell by its name whether a method sends something else than the values as they are."""
    return not method.endswith("+dense")
