"""Our planner: the iteration of the whole timeline decides on buckets, order and methods."""

import time
from dataclasses import replace

from commsched.plan.model import Plan
from commsched.planner.planners.greedy import greedy
from commsched.planner.reasons.explain import explained
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from commsched.planner.search.candidates import Search
from commsched.planner.search.encoding import encoded
from commsched.program.registry import STRATEGIES


@PLANNERS.add("best")
def best(request: Request) -> Plan:
    """Search until nothing helps, the time is up, or Ctrl-C; then return the best plan so far."""
    if not (STRATEGIES[request.strategy].sums_every_step and request.net.tensors):
        return replace(greedy(request), planner="best")
    deadline = None
    if request.time_limit is not None:
        deadline = time.monotonic() + request.time_limit
    search = Search(request, lambda: deadline is not None and time.monotonic() >= deadline)
    try:
        search.run()
    except KeyboardInterrupt:
        search.stopped = True
    return plan_of(search)


def plan_of(search: Search) -> Plan:
    """Return the plan of a search's best candidate, with its reasons."""
    chosen, seconds = search.result()
    plan = explained(search.problem, chosen, "best")
    return plan if seconds is None else encoded(replace(plan, iteration=seconds), search.request)
