"""ByteScheduler: parts of 4 MB; the ready part of the first layer goes first.

Source: Peng et al., "A generic communication scheduler for distributed DNN training
acceleration", SOSP 2019.
"""

from commsched.planner.baseline import baseline
from commsched.planner.search.order import by_priority
from commsched.planner.search.problem import Problem
from commsched.planner.space import Candidate, MethodChoice, bucket, parted

PART = 2**20  # elements: 4 MB
MOST = 1024  # parts of a net; larger nets get larger ones


@baseline("bytescheduler", library=True)
def bytescheduler(problem: Problem) -> Candidate:
    """Parts by priority; the library's own all-reduce; updates under the next forward pass."""
    parts: list[MethodChoice] = []
    request = problem.request
    size = max(1, round(request.scale * PART), request.net.numel // MOST)
    for one in problem.tensors:
        (unit,) = one.units
        for made in (bucket([part]) for part in parted(unit, -(-unit.numel // size))):
            parts.append(MethodChoice(made, problem.library(made)))
    return Candidate(by_priority(problem, parts), problem.late)
