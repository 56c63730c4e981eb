"""Why a candidate is as it is: per launch the runner-up, and what it would cost."""

from dataclasses import replace

import numpy as np

from commsched.cost.price import method_seconds
from commsched.methods import Direct, Method
from commsched.plan import Plan, Reason
from commsched.planner.bound import lower_bound
from commsched.planner.improve import Change, evaluated
from commsched.planner.problem import Problem
from commsched.planner.units import Candidate, Choice, spec_of


def explained(problem: Problem, candidate: Candidate, planner: str) -> Plan:
    """The plan of a candidate with a reason for every launch, its iteration and the bound.

    The runner-up is the method with which the iteration grows least, of those that change nothing
    the one that is fastest by itself; its margin is that growth.
    """
    plan = problem.plan(candidate, planner)
    changes, places = [], []
    for k, (made, method) in enumerate(candidate.choices):
        for other in problem.options(made):
            if other != method:
                changes.append(Change(k, k + 1, (Choice(made, other),)))
                places.append(k)
    base = problem.evaluator.one(candidate)
    margins = np.zeros(0)
    if changes:
        margins = evaluated(problem, candidate, changes) - base
    alone = problem.alone([choice.bucket for choice in candidate.choices])
    others: list[list[tuple[float, float, int]]] = [[] for _ in candidate.choices]
    for k, change, margin in zip(places, changes, margins.tolist(), strict=True):
        method = change.choices[0].method
        shown = 0.0 if abs(margin) < 1e-9 * base else margin
        others[k].append((shown, float(alone[k, method]), method))
    launches = tuple(
        replace(launch, reason=_reason(problem, choice, sorted(some)))
        for launch, choice, some in zip(plan.launches, candidate.choices, others, strict=True)
    )
    return replace(plan, launches=launches, iteration=base, bound=min(lower_bound(problem), base))


def _reason(problem: Problem, choice: Choice, others: list[tuple[float, float, int]]) -> Reason:
    methods, request = problem.prices.methods, problem.request
    spec = spec_of(choice.bucket, request.graph)

    def seconds(number: int) -> float:
        return method_seconds(methods[number], spec, request.machine, problem.prices.group)

    chosen = methods[choice.method]
    if not others:
        return Reason(seconds=seconds(choice.method))
    margin, _, second = others[0]
    kind = compresses(chosen)
    different = [entry for entry in others if compresses(methods[entry[2]]) != kind]
    return Reason(
        seconds=seconds(choice.method),
        runner_up=methods[second].name,
        runner_up_seconds=seconds(second),
        margin=margin,
        opposite=methods[different[0][2]].name if different else "",
        opposite_margin=different[0][0] if different else 0.0,
    )


def compresses(method: Method) -> bool:
    """Tell whether a method sends something else than the values as they are."""
    return not (isinstance(method, Direct) and method.codec.name == "dense")
