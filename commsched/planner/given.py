"""A plan whose method the user gives: buckets in backward order, all exchanged by it."""

from dataclasses import replace

from commsched.methods import find_method
from commsched.plan import Launch, Plan
from commsched.plan import file as plan_file
from commsched.planner import wishes
from commsched.planner.base import buckets, launches
from commsched.planner.ddp import BUCKET
from commsched.planner.request import Request


def given(request: Request, method: str) -> Plan:
    """Exchange every bucket by `method`, but for tensors that the request forces another for."""
    wishes.check(request)
    everyone = request.machine.everyone

    def choose(launch: Launch) -> Launch:
        return replace(launch, method=launch.method or find_method(method).name)

    made = launches(request, buckets(request, request.bucket or BUCKET), choose)
    for launch in made.launches:  # a pair that is not legal says why
        find_method(launch.method).phases(made.spec(launch), everyone)
    return plan_file.frozen(replace(made, planner=f"given: {method}"))
