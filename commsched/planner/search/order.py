"""The order of launches: among ready launches, the one whose first reader comes first."""

import heapq
from collections.abc import Sequence

from commsched.planner.search.problem import Problem
from commsched.planner.space import MethodChoice


def by_priority(problem: Problem, choices: Sequence[MethodChoice]) -> tuple[MethodChoice, ...]:
    """Choose whenever the exchange stream falls free; launches of one layer keep their order.

    Source: Schrage's rule for one machine with heads and tails (Carlier, EJOR 11(1), 1982).
    """
    rows = problem.evaluator.rows(choices)
    vote, encode, exchange, _ = rows.seconds.sum(axis=1)  # over phases
    encoded, busy = (rows.ready + encode).tolist(), (vote + exchange).tolist()
    coming = sorted(range(len(choices)), key=lambda i: (choices[i].bucket.ready, i))
    waiting: list[tuple[int, int]] = []
    found: list[MethodChoice] = []
    now, at = 0.0, 0
    while len(found) < len(choices):
        while at < len(coming) and (not waiting or encoded[coming[at]] <= now):
            i = coming[at]
            heapq.heappush(waiting, (choices[i].bucket.after, i))
            now = max(now, encoded[i]) if len(waiting) == 1 else now
            at += 1
        _, i = heapq.heappop(waiting)
        found.append(choices[i])
        now += busy[i]
    return tuple(found)
