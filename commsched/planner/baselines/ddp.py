"""PyTorch's DistributedDataParallel: buckets of 25 MB in backward order, the first of 1 MB.

Source: Li et al., "PyTorch Distributed", VLDB 13(12), 2020.
"""

from commsched.planner.baseline import baseline
from commsched.planner.search.problem import Problem
from commsched.planner.space import Candidate

BUCKET, FIRST = 25e6, 1e6  # B


@baseline("ddp-25mb", library=True)
def ddp(problem: Problem) -> Candidate:
    """Fill buckets with whole tensors; the library's own all-reduce; update when all have ended."""
    scale = problem.request.scale
    return problem.uniform(problem.filled(scale * BUCKET, scale * FIRST), problem.early)
