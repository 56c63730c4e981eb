"""The order of launches: among ready launches, the one whose first reader comes first."""

import heapq
from collections.abc import Sequence

import numpy as np

from commsched.arrays import Floats
from commsched.planner.search.problem import Problem
from commsched.planner.space import Bucket, MethodChoice, Unit


def by_priority(problem: Problem, choices: Sequence[MethodChoice]) -> tuple[MethodChoice, ...]:
    """Order launches: the exchange stream, once free, takes the most urgent ready launch."""
    rows = problem.evaluator.rows(choices)
    vote, encode, exchange, _ = rows.seconds.sum(axis=1)  # over phases
    order = _served([c.bucket for c in choices], rows.ready + encode, vote + exchange)
    return tuple(choices[i] for i in order)


def units_by_priority(
    problem: Problem, choices: Sequence[MethodChoice], units: Sequence[Unit]
) -> list[Unit]:
    """Order units as if each were its own launch, with a share of its launch's seconds."""
    rows = problem.evaluator.rows(choices)
    vote, encode, exchange, _ = rows.seconds.sum(axis=1)
    place = {unit: k for k, choice in enumerate(choices) for unit in choice.bucket.units}
    launch = [place[unit] for unit in units]
    made = [choices[k].bucket for k in launch]
    share = np.array([unit.numel / one.numel for unit, one in zip(units, made, strict=True)])
    later = [unit.ready - one.ready for unit, one in zip(units, made, strict=True)]
    encoded = rows.ready[launch] + later + share * encode[launch]
    order = _served(units, encoded, share * (vote + exchange)[launch])
    return [units[i] for i in order]


def _served(made: Sequence[Bucket | Unit], encoded: Floats, busy: Floats) -> list[int]:
    """Return the order in which one stream serves buckets: `encoded` s when ready, `busy` s long.

    Source: Schrage's rule for one machine with heads and tails (Carlier, EJOR 11(1), 1982).
    """
    ready, lasts = encoded.tolist(), busy.tolist()
    coming = sorted(range(len(made)), key=lambda i: (made[i].ready, i))
    waiting: list[tuple[int, int]] = []
    found: list[int] = []
    now, at = 0.0, 0
    while len(found) < len(made):
        while at < len(coming) and (not waiting or ready[coming[at]] <= now):
            i = coming[at]
            heapq.heappush(waiting, (made[i].after, i))
            now = max(now, ready[i]) if len(waiting) == 1 else now
            at += 1
        _, i = heapq.heappop(waiting)
        found.append(i)
        now += lasts[i]
    return found
