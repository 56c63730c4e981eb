"""A plan whose method the user gives: all buckets, in backward order, are exchanged by it."""

from dataclasses import replace

from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.plan.model import Launch, Plan
from commsched.planner import validate_request as wishes
from commsched.planner.baselines.ddp import BUCKET
from commsched.planner.launches import buckets, launches
from commsched.planner.make_plan import make_plan
from commsched.planner.registry import FRAMES
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration


def given(request: Request, method: str) -> Plan:
    """Exchange every bucket by `method`, except tensors with a forced method."""
    wishes.check(request)
    everyone = request.machine.everyone
    if request.strategy in FRAMES:
        return _framed(request, method)

    def choose(launch: Launch) -> Launch:
        return replace(launch, method=launch.method or find_method(method).name)

    made = launches(request, buckets(request, request.bucket or BUCKET), choose)
    for launch in made.launches:  # an illegal pair raises an error
        find_method(launch.method).phases(made.spec(launch), everyone)
    made.check()
    return replace(made, planner=f"given: {method}")


def _framed(request: Request, method: str) -> Plan:
    """Plan as the strategy does, and exchange the buckets of gradients by `method`."""
    made = make_plan(request)
    name, chosen = find_method(method).name, []
    for launch in made.launches:
        activation = launch.payload == "activation"
        if not activation and find_method(launch.method).sharded:
            raise CommschedError(
                "--method is for sums that every rank gets; zero=1 leaves shards of"
                f" {launch.name!r}"
            )
        forced = activation or launch.pieces[0].tensor in request.force
        changed = launch if forced else replace(launch, method=name, reason=None)
        group = made.group(launch)
        find_method(changed.method).phases(made.spec(launch), group)
        chosen.append(launch if group.size == 1 else changed)  # a single rank exchanges nothing
    plan = replace(made, launches=tuple(chosen), planner=f"given: {method}")
    return replace(plan, iteration=iteration(plan))
