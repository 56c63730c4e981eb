"""Where buckets are encoded: on a thread of their own, or on the thread that sends them."""

from dataclasses import replace

import numpy as np

from commsched.plan.model import Plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.program.registry import STRATEGIES

PLACES = ("apart", "communication")
GAIN = 0.01  # share of the iteration that the other place has to save, at the least


def encoded(plan: Plan, request: Request) -> Plan:
    """The plan with its buckets encoded where its simulated iteration is shorter.

    Only where threads hear late of each other another place than a thread of their own may save
    something. On a calibrated machine that has to be more than what the calibration's median
    held-out error makes of all that takes longer than the rank's own compute.
    """
    if "encode" in request.params or not plan.launches or not plan.machine.handover:
        return plan
    other = _at(plan, PLACES[1])
    seconds, errors = iteration(other), [abs(cell.error) for cell in plan.machine.held_out]
    device = plan.machine.device
    compute = sum(sum(plan.net.seconds(layer, device)) for layer in plan.net.layers)
    doubtful = float(np.median(errors)) * (plan.iteration - compute) if errors else 0.0
    if plan.iteration - seconds <= max(GAIN * plan.iteration, doubtful):
        return plan
    return replace(other, iteration=seconds)


def elsewhere(plan: Plan) -> tuple[str, str, float] | None:
    """Where a plan encodes, the other place, and how many s that adds to the iteration."""
    if "encode" not in STRATEGIES[plan.strategy].defaults or not plan.launches:
        return None
    here = str(STRATEGIES[plan.strategy].settings(plan)["encode"])
    (there,) = (place for place in PLACES if place != here)
    return here, there, iteration(_at(plan, there)) - iteration(plan)


def _at(plan: Plan, place: str) -> Plan:
    """The same plan encoded at a place; the default is not written down."""
    params = {key: value for key, value in plan.params.items() if key != "encode"}
    if place != PLACES[0]:
        params["encode"] = place
    return replace(plan, params=params)
