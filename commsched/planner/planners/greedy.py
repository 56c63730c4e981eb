"""The first planner: near-equal buckets in backward order, the cheapest legal method for each."""

from bisect import insort
from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush

import numpy as np

from commsched.cost.price import method_seconds, prices
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Launch, Plan, Reason
from commsched.planner.launches import buckets, launches
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from commsched.planner.search.shortlist import without_skippers
from commsched.simulate.engine import simulate
from commsched.timeline.measure import iteration_seconds

# Buckets per net that are tried where the user gives no size; the best simulated iteration wins.
COUNTS = (1, 4, 8, 16, 32, 64)

# Ranks up to which playing every move takes no longer than a closed form.
FEW = 8
# A closed form is at most 15 % above what is played (`cost.closed`): what is further above the
# second is not played.
MARGIN = 1.25

# Bucket and forced method -> seconds and name of its methods, cheapest first.
Known = dict[tuple[BucketSpec, str], list[tuple[float, str]]]


@PLANNERS.add("greedy")
def greedy(request: Request) -> Plan:
    """Try some bucket sizes; keep the plan with the shortest simulated iteration."""
    known: Known = {}
    if request.bucket is not None:
        return _with_buckets(request, request.bucket, known)
    total = 4.0 * request.net.numel
    sizes = {max(total / count, 1.0) for count in COUNTS}
    plans = [_with_buckets(request, size, known) for size in sorted(sizes)]
    return min(plans, key=_iteration)


def _iteration(plan: Plan) -> float:
    """Seconds of the second simulated step: the first has no exchanges left over."""
    return float(iteration_seconds(simulate(plan, steps=3).timeline())[1])


def _with_buckets(request: Request, size: float, known: Known) -> Plan:
    """The cheapest method for each bucket of `size` bytes; those in `known` are priced already."""
    group = request.machine.everyone
    methods = list(request.methods(group))

    def choose(launch: Launch) -> Launch:
        spec = BucketSpec.of(launch.pieces, request.net.tensors)
        if (spec, launch.method) not in known:
            options = [find_method(launch.method)] if launch.method else useful(methods, spec)
            known[spec, launch.method] = cheapest(options, spec, request.machine, group)
        (seconds, name), *others = known[spec, launch.method]
        runner_up = others[0] if others else (0.0, "")
        reason = Reason(seconds=seconds, runner_up=runner_up[1], runner_up_seconds=runner_up[0])
        return replace(launch, method=name, reason=reason)

    plan = launches(request, buckets(request, size), choose)
    return replace(plan, planner="greedy")


def useful(methods: list[Method], spec: BucketSpec) -> list[Method]:
    """Without the codecs that leave out zeros where a bucket has none."""
    whole = np.array([spec.numel])
    if spec.nonzeros(np.zeros(1, np.int64), whole, 1)[0] < spec.numel:
        return methods
    return without_skippers(methods)


def cheapest(
    methods: list[Method], spec: BucketSpec, machine: Machine, group: Group
) -> list[tuple[float, str]]:
    """Return seconds and names of methods, cheapest first.

    Methods that cannot be the second cheapest may be missing.
    """
    found: list[tuple[float, str]] = []
    for seconds, i in _in_order(methods, spec, machine, group):
        if len(found) > 1 and seconds > MARGIN * found[1][0]:
            break
        insort(found, (method_seconds(methods[i], spec, machine, group), methods[i].name))
    return found


def _in_order(
    methods: list[Method], spec: BucketSpec, machine: Machine, group: Group
) -> Iterator[tuple[float, int]]:
    """Yield rough prices and numbers of methods, cheapest first; dear ones are not priced whole.

    The method of which the least is known goes on, phase by phase.
    """
    if group.size <= FEW:
        yield from ((0.0, i) for i in range(len(methods)))
        return
    going = [prices(method, spec, machine, group, limit=0) for method in methods]
    heap = [(0.0, False, i) for i in range(len(methods))]
    while heap:
        seconds, whole, i = heappop(heap)
        if whole:
            yield seconds, i
        elif (more := next(going[i], None)) is None:
            heappush(heap, (seconds, True, i))
        else:
            heappush(heap, (more.seconds, False, i))
