"""HiPress: compress a gradient iff that is faster than its plain exchange, parts chosen together.

Source: Bai et al., "Gradient compression supercharged high-performance data parallel DNN
training", SOSP 2021.
"""

from commsched.planner.baseline import baseline
from commsched.planner.search.problem import Problem
from commsched.planner.space import Bucket, Candidate, MethodChoice, bucket, parted

PARTS = (1, 2, 4, 8, 16)


@baseline("hipress")
def hipress(problem: Problem) -> Candidate:
    """Decide method and number of parts for each tensor alone; no buckets."""
    whole = problem.tensors
    best: list[tuple[float, list[MethodChoice]]] = [(float("inf"), [])] * len(whole)
    for count in PARTS:
        split = [_parts(one, count) for one in whole]
        for method in range(len(problem.prices.methods)):
            where = [
                i
                for i, parts in enumerate(split)
                if method in problem.options(whole[i]) and len(parts) == count
            ]
            firsts = [split[i][0] for i in where]
            if not firsts:
                continue
            rows = problem.prices.rows(firsts, [method] * len(firsts), 0.0)
            vote, encode, exchange, decode = rows.seconds.sum(axis=1)
            # parts pass through the coding and the exchange in a row
            seconds = vote + encode + count * exchange + decode
            for i, value in zip(where, seconds.tolist(), strict=True):
                if value < best[i][0]:
                    best[i] = value, [MethodChoice(part, method) for part in split[i]]
    return Candidate(tuple(c for _, choices in best for c in choices), problem.early)


def _parts(one: Bucket, count: int) -> list[Bucket]:
    """Return near-equal parts of a tensor; one where it is too small, forced or sparse."""
    (unit,) = one.units
    return [bucket([part]) for part in parted(unit, 1 if unit.numel < count else count)]
