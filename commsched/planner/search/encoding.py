"""The threads that encode and decode buckets: their own threads, or the communication thread."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from commsched.machine.trust import alike
from commsched.plan.model import Param, Plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.program.parts import gather_seconds, handover_seconds, mean_seconds
from commsched.program.registry import STRATEGIES

PLACES = 3  # places at most; each is simulated
APART = "apart"  # the default: encoding and decoding have threads of their own
GAIN = 0.01  # share of the iteration that another place has to save, at the least


def encoded(plan: Plan, request: Request) -> Plan:
    """Return the plan with its buckets coded at the place with the shortest simulated iteration.

    Another place than separate threads can save time only if hand-overs between threads take time.
    On a calibrated machine the saving must exceed the calibration's median held-out error times the
    part of the iteration beyond the rank's own compute.
    """
    asked = request.params.keys() & {"encode", "together"}
    if asked or not plan.launches or not handover_seconds(plan.machine, plan.net):
        return plan
    others = [_at(plan, place) for place in _places(plan).values()]
    seconds, best = min(((iteration(other), k) for k, other in enumerate(others)))
    errors = [abs(cell.error) for cell in alike(plan.machine, plan.net.occupies_cores)]
    device = plan.machine.device
    compute = sum(sum(plan.net.seconds(layer, device)) for layer in plan.net.layers)
    doubtful = float(np.median(errors)) * (plan.iteration - compute) if errors else 0.0
    if plan.iteration - seconds <= max(GAIN * plan.iteration, doubtful):
        return plan
    return replace(others[best], iteration=seconds)


def elsewhere(plan: Plan) -> tuple[str, str, float] | None:
    """Return the place where a plan codes, the best other place, and the s that this one adds."""
    if "encode" not in STRATEGIES[plan.strategy].defaults or not plan.launches:
        return None
    places = _places(plan)
    now = {key: value for key, value in plan.params.items() if key in ("encode", "together")}
    here = next((name for name, place in places.items() if place.keys() == now.keys()), APART)
    others = {name: iteration(_at(plan, places[name])) for name in places if name != here}
    there = min(others, key=others.__getitem__)
    return here, there, others[there] - iteration(plan)


def _places(plan: Plan) -> dict[str, Mapping[str, Param]]:
    """Return each place's parameters; only buckets coded within a hand-over go together."""
    device = plan.machine.device
    coding = sum(seconds(2**20, device) for seconds in (gather_seconds, mean_seconds))  # of 4 MB
    within = int(2 * handover_seconds(plan.machine, plan.net) / coding * 2**22)
    places: dict[str, Mapping[str, Param]] = {
        APART: {},
        "communication": {"encode": "communication"},
    }
    return places | ({"together": {"together": within}} if within else {})


def _at(plan: Plan, place: Mapping[str, Param]) -> Plan:
    """Return the plan coded at another place; leave out parameters with default values."""
    params = {k: v for k, v in plan.params.items() if k not in ("encode", "together")}
    return replace(plan, params=params | dict(place))
