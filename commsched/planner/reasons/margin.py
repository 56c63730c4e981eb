"""The uncertainty of a margin."""

import numpy as np

from commsched.machine.trust import alike
from commsched.plan.model import Plan, Reason
from commsched.timeline.totals import p10_to_p90


def margin_interval(plan: Plan, reason: Reason) -> tuple[float, float] | None:
    """Return p10 and p90 of a margin, s; None if the machine has no held-out errors.

        margin + r / (1 + e) - r - (c / (1 + e') - c)

    c, r [s] = exchange by the chosen method and by the runner-up alone; e, e' = all pairs of the
    relative errors (predicted - measured) / measured of the calibration's held-out cells: the
    errors of two prices are independent.
    """
    if not plan.machine.held_out or not reason.runner_up:
        return None
    errors = np.array([cell.error for cell in alike(plan.machine, plan.net.occupies_cores)])
    off = 1.0 / (1.0 + errors) - 1.0
    values = np.subtract.outer(reason.runner_up_seconds * off, reason.seconds * off)
    return p10_to_p90(reason.margin + values, len(errors))
