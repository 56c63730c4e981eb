"""Horovod: what is ready at the end of each cycle is fused, up to 64 MB.

Source: Sergeev & Del Balso, "Horovod", arXiv 1802.05799, 2018; its defaults of cycle and size.
"""

from commsched.planner.baseline import baseline
from commsched.planner.search.problem import Problem
from commsched.planner.space import Bucket, Candidate, Unit, bucket

BUCKET, CYCLE = 64e6, 1e-3  # B, s


@baseline("horovod-64mb", library=True)
def horovod(problem: Problem) -> Candidate:
    """Fuse the tensors of one cycle; the library's own all-reduce; update when all have ended."""
    limit = problem.request.scale * BUCKET
    made: list[Bucket] = []
    group: list[Unit] = []
    numel = 0  # in the group
    for one in problem.tensors:
        (unit,) = one.units
        same = group and int(unit.ready / CYCLE) == int(group[0].ready / CYCLE)
        size = 4.0 * (numel + unit.numel)
        if group and (not same or size > limit or unit.forced or group[0].forced):
            made.append(bucket(group))
            group, numel = [], 0
        group.append(unit)
        numel += unit.numel
    if group:
        made.append(bucket(group))
    return problem.uniform(made, problem.early)
