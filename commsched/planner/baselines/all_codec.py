"""One codec for all gradients, in buckets of 25 MB."""

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.planner.baseline import baseline
from commsched.planner.baselines.ddp import BUCKET, FIRST
from commsched.planner.search.problem import Baseline, Problem
from commsched.planner.space import Candidate, MethodChoice

NAMES = ("topk", "fft", "qsgd", "coo")


def _with(codec: str) -> Baseline:
    def plan(problem: Problem) -> Candidate:
        """By closed forms the cheapest method with the codec; update when all have ended."""
        group = problem.prices.group
        wanted = [
            method
            for method in problem.request.methods(group)
            if method.codec is not None and method.coding.partition(":")[0] == codec
        ]
        if not wanted:
            near = "--planner all-coo" if problem.request.lossless else f"--allow {codec}"
            raise CommschedError(
                f"planner 'all-{codec}' needs codec {codec!r}, which is not allowed; nearest:"
                f" {near}"
            )
        scale = problem.request.scale
        made = problem.filled(scale * BUCKET, scale * FIRST)
        quick = problem.rough(wanted)
        names = [quick.prices.methods[m].name for m in quick.cheapest(made)]
        choices = tuple(MethodChoice(b, problem.named(n)) for b, n in zip(made, names, strict=True))
        return Candidate(choices, problem.early)

    return plan


for _name in NAMES:
    if _name in CODECS:
        baseline(f"all-{_name}")(_with(_name))
