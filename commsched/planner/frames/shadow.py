"""Plans of strategy `shadow`: parameters only, in chunks, by the cheapest all-reduce."""

from dataclasses import replace

from commsched.plan.model import Plan
from commsched.planner.averages import averages, check
from commsched.planner.registry import FRAMES, Planner
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES


@FRAMES.add("shadow")
def shadow(request: Request, planner: Planner) -> Plan:
    """Make a launch for each chunk; no planner is asked, since no gradient travels."""
    check(request)
    settings = STRATEGIES["shadow"].settings(request.plan())
    launches = [
        replace(launch, purpose="average", every=int(settings["every"]), lag=int(settings["lag"]))
        for launch in averages(request, request.machine.everyone, "dense", "a", 0)
    ]
    return request.plan(launches)
