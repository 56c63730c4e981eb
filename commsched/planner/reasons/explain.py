"""The reason of each launch: its runner-up, and what the runner-up would cost."""

from collections.abc import Sequence
from dataclasses import replace

from commsched.exchange.method import Method
from commsched.exchange.registry import find_method
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Plan, Reason
from commsched.planner.search.bound import lower_bound
from commsched.planner.search.improve import Change, evaluated
from commsched.planner.search.problem import Problem
from commsched.planner.space import Bucket, Candidate, MethodChoice, spec_of

FEW = 64  # in plans of up to FEW launches, the seconds of each launch alone are played

# A launch's other method: increase of the iteration, s; seconds of the launch alone; its name.
Other = tuple[float, float, str]


def explained(problem: Problem, candidate: Candidate, planner: str) -> Plan:
    """Return the plan of a candidate with a reason for every launch, its iteration and the bound.

    The runner-up is the method with which the iteration grows least; among equals, the one whose
    exchange alone is fastest. Its margin is that growth. The opposite is the best method of the
    other kind: one that compresses if the chosen method does not, and vice versa.
    """
    plan = problem.plan(candidate, planner)
    base = problem.evaluator.one(candidate)
    others = _others(problem, candidate, _options(problem, candidate))
    alone = [k for k in _free(candidate) if not others[k]]
    several = _cheapest(problem, candidate, alone, _not_considered(problem))
    for k, near in zip(alone, _roughly(problem, candidate, alone, several), strict=True):
        others[k] = [near] if near else []
    opposites = _opposites(problem, candidate, others)
    exactly = len(candidate.choices) <= FEW
    launches = tuple(
        replace(launch, reason=_reason(problem, choice, some, opposite, exactly))
        for launch, choice, some, opposite in zip(
            plan.launches, candidate.choices, others, opposites, strict=True
        )
    )
    return replace(plan, launches=launches, iteration=base, bound=min(lower_bound(problem), base))


def _free(candidate: Candidate) -> list[int]:
    """List the launches that may have another method."""
    return [k for k, choice in enumerate(candidate.choices) if not choice.bucket.forced]


def _options(problem: Problem, candidate: Candidate) -> list[list[int]]:
    """List each launch's methods, and the cheapest of its codec that the search left out."""
    choices, methods = candidate.choices, problem.prices.methods
    options = [list(problem.options(choice.bucket)) for choice in choices]
    alike: dict[str, list[int]] = {}
    for k in _free(candidate):
        alike.setdefault(methods[choices[k].method].coding, []).append(k)
    more = _not_considered(problem)
    for coding, where in alike.items():
        same = [method for method in more if method.coding == coding]
        for method in _cheapest(problem, candidate, where, same):
            number = problem.prices.add(method)
            for k in where:
                if problem.guard.allows(method, choices[k].bucket):
                    options[k].append(number)
    return options


def _not_considered(problem: Problem) -> list[Method]:
    """List the methods that the search left out as not worth an exact price."""
    considered = {method.name for method in problem.prices.methods}
    methods = problem.request.methods(problem.prices.group)
    return [method for method in methods if method.name not in considered]


def _others(
    problem: Problem, candidate: Candidate, options: Sequence[Sequence[int]]
) -> list[list[Other]]:
    """List each launch's other methods, the nearest first."""
    changes, places = [], []
    for k, (made, method) in enumerate(candidate.choices):
        for other in options[k]:
            if other != method:
                changes.append(Change(k, k + 1, (MethodChoice(made, other),)))
                places.append(k)
    found: list[list[Other]] = [[] for _ in candidate.choices]
    if not changes:
        return found
    base = problem.evaluator.one(candidate)
    margins = evaluated(problem, candidate, changes) - base
    new = [change.choices[0] for change in changes]
    rows = problem.prices.rows([c.bucket for c in new], [c.method for c in new], 0.0)
    alone = rows.seconds.sum(axis=(0, 1))
    for k, choice, margin, by_itself in zip(
        places, new, margins.tolist(), alone.tolist(), strict=True
    ):
        shown = 0.0 if abs(margin) < 1e-9 * base else margin
        found[k].append((shown, by_itself, problem.prices.methods[choice.method].name))
    return [sorted(some) for some in found]


def _opposites(
    problem: Problem, candidate: Candidate, others: list[list[Other]]
) -> list[Other | None]:
    """Return each launch's nearest method of the other kind.

    Methods that were not worth an exact price are compared, too, by closed forms.
    """
    methods = problem.prices.methods
    chosen = [methods[choice.method] for choice in candidate.choices]
    found: list[Other | None] = []
    for method, some in zip(chosen, others, strict=True):
        kind = method.compresses
        found.append(next((o for o in some if find_method(o[2]).compresses != kind), None))
    for kind in (False, True):
        where = [k for k in _free(candidate) if chosen[k].compresses == kind]
        asked = _opposite_methods(problem, kind) if where else []
        several = _cheapest(problem, candidate, where, asked)
        for k, near in zip(where, _roughly(problem, candidate, where, several), strict=True):
            found[k] = min((o for o in (near, found[k]) if o), default=None)
    return found


def _roughly(
    problem: Problem, candidate: Candidate, where: list[int], several: list[Method]
) -> list[Other | None]:
    """Return the nearest of several methods for some launches; closed forms price both plans."""
    if not several:
        return [None] * len(where)
    used = {c.method: problem.prices.methods[c.method] for c in candidate.choices}
    rough = problem.rough([*used.values(), *several])
    options: list[list[int]] = [[] for _ in candidate.choices]
    for k in where:
        made = candidate.choices[k].bucket
        options[k] = [rough.named(m.name) for m in several if problem.guard.allows(m, made)]
    found = _others(rough, rough.moved(candidate, problem), options)
    return [min(found[k], default=None) for k in where]


def _opposite_methods(problem: Problem, compresses: bool) -> list[Method]:
    """List the methods of the other kind; if possible, only those of collectives considered."""
    methods = [
        m for m in problem.request.methods(problem.prices.group) if m.compresses != compresses
    ]
    considered = (problem.prices.methods[number] for number in problem.prices.free)
    known = {m.family for m in considered if m.codec is not None}
    return [m for m in methods if m.codec is not None and m.family in known] or methods


def _cheapest(
    problem: Problem, candidate: Candidate, where: Sequence[int], asked: Sequence[Method]
) -> list[Method]:
    """Return the cheapest methods for the smallest, the middle and the largest of some launches."""
    if not (where and asked):
        return []
    made = sorted((candidate.choices[k].bucket for k in where), key=lambda one: one.numel)
    found = {}
    for one in (made[0], made[len(made) // 2], made[-1]):
        spec = _spec(problem, one)
        best = min(asked, key=lambda m: float(problem.prices.closed(m, spec).sum()))
        found[best.name] = best
    return list(found.values())


def _spec(problem: Problem, made: Bucket) -> BucketSpec:
    """Return the content that decides a bucket's price: without zeros, its number of elements."""
    if made.sparse:
        return spec_of(made, problem.request.net)
    return BucketSpec.uniform(made.numel)


def _reason(
    problem: Problem,
    choice: MethodChoice,
    others: list[Other],
    opposite: Other | None,
    exactly: bool,
) -> Reason:
    """Return the reason of a launch, with its seconds played if `exactly`, else right to 0.2 %."""
    spec = _spec(problem, choice.bucket)

    def seconds(number: int) -> float:
        if not exactly and problem.prices.follows_size(choice.bucket, number):
            return problem.prices.unpacked_of_size(choice.bucket.numel, number)
        return problem.prices.unpacked(spec, number)

    margin, _, second = others[0] if others else (0.0, 0.0, "")
    return Reason(
        seconds=seconds(choice.method),
        runner_up=second,
        runner_up_seconds=seconds(problem.named(second)) if second else 0.0,
        margin=margin,
        opposite=opposite[2] if opposite else "",
        opposite_margin=opposite[0] if opposite else 0.0,
    )
