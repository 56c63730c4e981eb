"""How sure a margin is, and whether a plan compresses."""

import numpy as np

from commsched.plan import Plan, Reason
from commsched.units import seconds

LOW, HIGH = 0.1, 0.9


def margin_interval(plan: Plan, reason: Reason) -> tuple[float, float] | None:
    """p10 and p90 of a margin, s; None where the machine has no held-out errors.

        margin + r / (1 + e) - r - (c / (1 + e') - c)

    c, r [s] = the chosen method and the runner-up by themselves; e, e' = all pairs of the relative
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
    """Say whether to compress, and what the opposite would cost."""
    pairs = [(e.method, e.reason) for e in plan.launches if e.reason is not None]
    if not pairs:
        return ""
    packed = [reason.opposite_margin for method, reason in pairs if _packs(method)]
    if packed:
        return (
            f"compress {len(packed)} of {len(pairs)} launches: without, the iteration would take up"
            f" to {seconds(max(packed))} longer for one of them"
        )
    costs = [reason.opposite_margin for _, reason in pairs if reason.opposite]
    if not costs:
        return "do not compress: no method that does is allowed"
    if max(costs) <= 0.0:
        return "do not compress: it would gain nothing, the exchanges are hidden"
    return (
        f"do not compress: it would cost {max(min(costs), 0.0) * 1e3:+.3g} to"
        f" {max(costs) * 1e3:+.3g} ms for one launch"
    )


def _packs(method: str) -> bool:
    """Tell by its name whether a method sends something else than the values as they are."""
    return not method.endswith("+dense")
