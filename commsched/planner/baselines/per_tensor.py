"""Wait-free back-propagation: one all-reduce per tensor, as soon as it is ready.

Source: Zhang et al., "Poseidon", USENIX ATC 2017.
"""

from commsched.planner.baseline import baseline
from commsched.planner.search.problem import Problem
from commsched.planner.space import Candidate


@baseline("per-tensor", library=True)
def per_tensor(problem: Problem) -> Candidate:
    """No buckets at all; the library's own all-reduce; update when all have ended."""
    return problem.uniform(problem.tensors, problem.early)
