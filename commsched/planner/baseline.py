"""The decorator that registers the planner of another system."""

from collections.abc import Callable
from functools import wraps

from commsched.plan.model import Plan
from commsched.planner.launches import launches
from commsched.planner.reasons.explain import explained
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from commsched.planner.search.problem import BASELINES, Baseline, Problem

OF_LIBRARY: set[str] = set()  # baselines that leave every bucket to the library's all-reduce


def baseline(name: str, *, library: bool = False) -> Callable[[Baseline], Baseline]:
    """Return a decorator that registers a baseline, and a planner that uses only this baseline.

    library: the baseline leaves every bucket to the library's all-reduce.
    """

    def register(make: Baseline) -> Baseline:
        if library:
            OF_LIBRARY.add(name)

        @wraps(make)
        def planner(request: Request) -> Plan:
            if not request.net.tensors:
                return launches(request, [], lambda launch: launch)
            problem = Problem(request)
            return explained(problem, problem.within(make(problem)), name)

        PLANNERS.add(name)(planner)
        return BASELINES.add(name)(make)

    return register
