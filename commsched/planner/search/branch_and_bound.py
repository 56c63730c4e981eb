"""The best plan of a small instance by branch and bound."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from commsched.planner.search.evaluate import Evaluator
from commsched.planner.search.prices import PricedRows
from commsched.planner.search.problem import Problem
from commsched.planner.space import Bucket, Candidate, MethodChoice, Unit, bucket

MOST = 200_000  # candidates: boundaries and methods together
UNITS = 11  # more units have thousands of boundaries, each a branch of its own


def size(problem: Problem, units: Sequence[Unit]) -> int:
    """Count the candidates: m (1 + m)^(n - 1) for n units and m methods."""
    methods = len(problem.prices.free)
    return int(methods * (1 + methods) ** (len(units) - 1))


def exact(problem: Problem, units: Sequence[Unit], first: Candidate) -> Candidate:
    """Return the fastest candidate among contiguous buckets of units in this order.

    A branch is a choice of boundaries. Its bound is its iteration if each bucket has the least
    encode, exchange and decode time of all methods, and nothing slows an exchange inside a node.
    Branches are tried in the order of their bounds until no bound is below the best iteration.
    """
    branches = list(_branches(units))
    least_of = bounds(problem, branches, first.late)
    best, least = first, problem.evaluator.one(first)
    for at in np.argsort(least_of, kind="stable").tolist():
        if least_of[at] >= least:
            break
        found, seconds = _methods(problem, branches[at], first.late)
        if seconds < least:
            best, least = found, seconds
    return best


def _branches(units: Sequence[Unit]) -> list[list[Bucket]]:
    """List all ways to cut the units into buckets; forced units have their own buckets."""
    found = []
    for cuts in product((False, True), repeat=len(units) - 1):
        made, start = [], 0
        for stop in [*(i + 1 for i, cut in enumerate(cuts) if cut), len(units)]:
            made.append(bucket(units[start:stop]))
            start = stop
        if all(len(b.units) == 1 or not any(u.forced for u in b.units) for b in made):
            found.append(made)
    return found


def bounds(problem: Problem, branches: list[list[Bucket]], late: bool) -> np.ndarray:
    """Return a lower bound of each branch over all choices of methods: (branches,) s."""
    different = list(dict.fromkeys(made for branch in branches for made in branch))
    place = {made: i for i, made in enumerate(different)}
    least = np.full((4, 1, len(different)), np.inf)
    least[0] = 0.0
    for i, made in enumerate(different):
        for method in problem.options(made):
            rows = problem.prices.rows([made], [method], 0.0)
            vote, encode, exchange, decode = rows.seconds[:, :, 0]
            last = int(rows.phases[0]) - 1
            values = encode[0], float(vote.sum() + exchange.sum()), decode[last]
            least[1:, 0, i] = np.minimum(least[1:, 0, i], values)
    rows = PricedRows(
        np.array([*(b.ready for b in different), 0.0]),
        np.array([*(b.after for b in different), len(problem.clock.forward)], np.int64),
        np.array([*(b.numel * problem.clock.apply for b in different), 0.0]),
        np.concatenate([least, np.zeros((4, 1, 1))], axis=2),
        np.array([1] * len(different) + [0]),
        np.zeros((1, len(different) + 1)),
        np.zeros(len(different) + 1),
    )
    index = np.full((max(map(len, branches)), len(branches)), len(different))
    for column, branch in enumerate(branches):
        index[: len(branch), column] = [place[made] for made in branch]
    alone = Evaluator(replace(problem.clock, capacity=np.inf), problem.prices)
    return alone.iterations(rows, index, late)


def _methods(problem: Problem, branch: list[Bucket], late: bool) -> tuple[Candidate, float]:
    """Return the candidate with the best methods for some buckets, and its iteration."""
    options = [[MethodChoice(made, m) for m in problem.options(made)] for made in branch]
    rows = problem.evaluator.rows([choice for some in options for choice in some])
    starts = np.cumsum([0, *(len(some) for some in options)])[:-1]
    grid = np.indices([len(some) for some in options]).reshape(len(branch), -1)
    seconds = problem.evaluator.iterations(rows, grid + starts[:, None], late)
    at = int(seconds.argmin())
    chosen = tuple(some[i] for some, i in zip(options, grid[:, at].tolist(), strict=True))
    return Candidate(chosen, late), float(seconds[at])
