"""Plans of strategies that no planner searches: the fastest of some, within a time limit."""

from dataclasses import replace
from typing import Any

import pytest

from commsched.plan.model import Plan
from commsched.planner import fastest_plan
from commsched.planner.deadline import Deadline
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from tests.support.small_plans import graph, machine, mixture

NET = graph([40_000, 3_000, 500, 120_000, 9_000, 60_000, 70_000, 800, 30_000], seconds=1e-4)
UNEVEN = replace(machine(2, 2), jitter=0.05)
STRATEGIES = ["zero1", "zero3", "expert"]


class Seen:
    """What is simulated, on a clock that each simulation moves on by 1 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.plans: list[Plan] = []
        monkeypatch.setattr(fastest_plan, "iteration", self.iteration)
        monkeypatch.setattr(fastest_plan, "Deadline", lambda limit: Deadline(limit, self.clock))

    def clock(self) -> float:
        return float(len(self.plans))

    def iteration(self, plan: Plan, *more: Any) -> float:
        self.plans.append(plan)
        return iteration(plan, *more)

    def made(self, strategy: str, limit: float | None) -> Plan:
        """Plan a net, and forget what was simulated before."""
        self.plans.clear()
        net = mixture(NET) if strategy == "expert" else NET
        return make_plan(Request(net=net, machine=UNEVEN, strategy=strategy, time_limit=limit))


@pytest.fixture
def seen(monkeypatch):
    return Seen(monkeypatch)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_limit_no_plan_that_was_tried_is_faster(strategy, seen):
    made = seen.made(strategy, None)
    tried = {plan.launches: plan for plan in seen.plans if plan.machine.even}
    assert len(tried) >= 4
    best = min(iteration(replace(plan, machine=UNEVEN)) for plan in tried.values())
    assert made.iteration == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_limit_ends_the_simulations_and_the_plan_has_the_iteration_of_its_own_machine(
    strategy, seen
):
    counts = []
    for limit in (0.0, 8.0, 13.0):
        made = seen.made(strategy, limit)
        assert seen.clock() <= max(limit, 2.0)  # the first plan, without jitter and with it
        assert made.iteration == pytest.approx(iteration(made), rel=1e-9)
        counts.append(seen.clock())
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]
