"""Our planner: it chooses buckets, order and methods by the iteration of the whole timeline."""

from dataclasses import replace
from typing import NamedTuple

from commsched.plan.model import Plan
from commsched.planner.deadline import Deadline
from commsched.planner.planners.greedy import greedy
from commsched.planner.reasons.explain import explained
from commsched.planner.registry import PLANNERS
from commsched.planner.request import Request
from commsched.planner.search.candidates import Search
from commsched.planner.search.encoding import PLACES, encoded
from commsched.planner.search.prices import PriceTables
from commsched.planner.search.problem import BASELINES, NO_SEARCH, Narrower, Placed, Problem
from commsched.program.registry import STRATEGIES


class Found(NamedTuple):
    """What a search has found."""

    placed: Placed
    plan: Plan  # without reasons
    stopped: bool  # by an interrupt


@PLANNERS.add("best")
def best(request: Request) -> Plan:
    """Search until no change helps, the time is up, or Ctrl-C; then return the best plan so far."""
    if not searches(request):
        return replace(greedy(request), planner="best")
    found = searched(request, Deadline(request.time_limit))
    return with_reasons(found.plan, found.placed)


def searches(request: Request) -> bool:
    """Tell whether a request needs a search: all ranks sum gradients in each step."""
    return STRATEGIES[request.strategy].sums_every_step and bool(request.net.tensors)


def searched(
    request: Request,
    deadline: Deadline,
    tables: PriceTables | None = None,
    narrower: Narrower = NO_SEARCH,
) -> Found:
    """Search from a first plan, or from the plans of searches among fewer methods."""
    return found_by(Search(request, deadline, tables=tables, narrower=narrower))


def found_by(search: Search) -> Found:
    """Run a search; return the best candidate and its plan, with its iteration."""
    try:
        search.run()
        chosen, seconds = search.result()
    except KeyboardInterrupt:
        search.stopped = True
        chosen, seconds = search.result()
    problem, candidate = chosen
    plan = problem.plan(candidate, "best")
    if seconds is None:
        plan = replace(plan, iteration=problem.evaluator.one(candidate))
    else:
        plan = replace(plan, iteration=seconds)
        if not search.stopped and search.trials.affords(len(plan.launches), PLACES):
            plan = encoded(plan, search.request)
    return Found(chosen, plan, search.stopped)


def placed_by(name: str, problem: Problem) -> tuple[Placed, Plan]:
    """Ask a baseline; return its candidate, and the plan without reasons, with its iteration."""
    candidate = problem.within(BASELINES[name](problem))
    plan = problem.plan(candidate, name)
    plan = replace(plan, iteration=problem.evaluator.one(candidate))
    return Placed(problem, candidate), plan


def with_reasons(plan: Plan, placed: Placed, problem: Problem | None = None) -> Plan:
    """Give a plan the reasons of its candidate, among the methods of `problem`, and the bound."""
    problem = problem or placed.problem
    told = explained(problem, problem.moved(placed.candidate, placed.problem), "best")
    return replace(plan, launches=told.launches, bound=min(told.bound, plan.iteration))
