"""Changes to methods that need less memory, until a candidate fits a memory limit."""

from dataclasses import replace

import numpy as np

from commsched.arrays import Floats
from commsched.exchange.memory import LaunchMemory, launch_memory
from commsched.planner.limits.memory import needed
from commsched.planner.search.improve import Change, evaluated
from commsched.planner.search.problem import Problem
from commsched.planner.space import Candidate, MethodChoice, spec_of


def fit_memory(problem: Problem, candidate: Candidate) -> Candidate:
    """Change methods, the least s per byte saved first, until a candidate fits or none helps."""
    limit = problem.request.memory
    assert limit is not None
    while True:
        over = needed(problem.plan(candidate, "")) - limit
        changes, saved = _smaller(problem, candidate)
        if over <= 0 or not changes:
            return candidate
        longer = evaluated(problem, candidate, changes) - problem.evaluator.one(candidate)
        each = np.maximum(longer, 0.0) / np.minimum(saved, over)
        best = changes[int(np.lexsort((-saved, each))[0])]
        choices = list(candidate.choices)
        choices[best.start : best.stop] = best.choices
        candidate = replace(candidate, choices=tuple(choices))


def _smaller(problem: Problem, candidate: Candidate) -> tuple[list[Change], Floats]:
    """Return the changes of one method that save memory, and the bytes that each saves."""
    group = problem.prices.group
    methods = problem.prices.methods

    def of(choice: MethodChoice) -> LaunchMemory:
        spec = spec_of(choice.bucket, problem.request.net)
        return launch_memory(methods[choice.method].name, spec, group)

    rooms = [of(choice) for choice in candidate.choices]
    received = [one.received for one in rooms]
    changes, saved = [], []
    for k, (made, method) in enumerate(candidate.choices):
        most = max((size for i, size in enumerate(received) if i != k), default=0.0)
        for other in {*problem.options(made), problem.library(made)} - {method}:
            one, old = of(MethodChoice(made, other)), rooms[k]
            less = old.alone + old.waiting - one.alone - one.waiting
            less += max(most, old.received) - max(most, one.received)
            if less > 0:
                changes.append(Change(k, k + 1, (MethodChoice(made, other),)))
                saved.append(less)
    return changes, np.array(saved)
