"""A search with a time limit: it has simulated what it returns, and it ends in time.

The clock is not the machine's: it goes on where a search evaluates candidates and simulates plans.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import pytest

from commsched.machine.fabric import HeldOut
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.planner.deadline import Deadline, OutOfTime
from commsched.planner.planners.best import Found, found_by
from commsched.planner.request import Request
from commsched.planner.search import trials
from commsched.planner.search.candidates import Search
from commsched.planner.search.problem import Problem
from commsched.planner.search.rivals import FAR, near_baselines
from commsched.planner.search.timing import iteration
from commsched.planner.search.trials import safe
from commsched.planner.space import Candidate
from tests.support import sampling
from tests.support.small_plans import graph, machine

NET = graph([40_000, 3_000, 500, 120_000, 9_000, 60_000, 70_000, 800, 30_000], seconds=1e-4)
LOOK = 1e-3  # s that pass from one look at the clock to the next
LAUNCH = 1.0  # s that simulating a launch takes
LIMITS = [0.0, 0.5, 1.0, 3.0, 7.0, 12.0, 20.0, 28.0, 40.0, 55.0, 80.0, 130.0]  # s
SAME = 1e-9  # exchanges that plans share are right to 10 ps


class Work:
    """A clock on which a look and a simulated launch take time, and nothing else does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 0.0
        self.simulated: list[Plan] = []
        simulate: Callable[..., float] = trials.iteration

        def slow(plan: Plan, *more: Any) -> float:
            self.time += LAUNCH * len(plan.launches)
            self.simulated.append(replace(plan, iteration=simulate(plan, *more)))
            return self.simulated[-1].iteration

        monkeypatch.setattr(trials, "iteration", slow)

    def __call__(self) -> float:
        self.time += LOOK
        return self.time

    def plan(self, asked: Request, limit: float) -> Found:
        """Search within a limit from now on."""
        self.simulated.clear()
        self.time = 0.0
        return found_by(Search(asked, Deadline(limit, self)))


def shared() -> Machine:
    """Ranks on which the fast evaluation is an estimate: threads hear late of each other."""
    return replace(machine(2, 2), handover=3e-4)


def calibrated() -> Machine:
    held_out = tuple(HeldOut(name=f"{t}", predicted=t, measured=1.3 * t) for t in (1e-4, 1e-3))
    return replace(shared(), held_out=held_out)


REQUESTS = {
    "plain": Request(net=NET, machine=machine(2, 2)),
    "shared": Request(net=NET, machine=shared()),
    "lossy": Request(net=NET, machine=shared(), lossy=("fp16", "topk:0.01")),
    "bucket": Request(net=NET, machine=shared(), bucket=4e5),
    "memory": Request(net=NET, machine=shared(), memory=1.1e7),
    "calibrated": Request(net=NET, machine=calibrated()),
}


CASES = sampling.some([*product(REQUESTS, LIMITS)], 14)


@pytest.fixture
def work(monkeypatch):
    return Work(monkeypatch)


@pytest.mark.by_day(5)
@pytest.mark.parametrize(("name", "limit"), CASES)
def test_what_comes_back_was_simulated_in_time_and_nothing_simulated_was_better(name, limit, work):
    found = work.plan(REQUESTS[name], limit)
    seconds, sizes = found.plan.iteration, [len(one.launches) for one in work.simulated]
    assert seconds == pytest.approx(iteration(found.plan), rel=1e-6)  # as short as nothing can be
    best = min(one.iteration for one in work.simulated)
    if name == "calibrated":  # where a plan that is less sensitive to errors may be chosen
        best = work.simulated[0].iteration
    assert seconds <= best * (1 + SAME)
    always = LAUNCH * sum(sizes[:2])  # the first dense plan and the first candidate
    assert work.time <= max(limit, always) + 100 * LOOK


@pytest.mark.parametrize("name", ["plain", "shared", "lossy", "calibrated"])
def test_dense_plans_are_simulated_first_and_none_is_shorter(name, work):
    asked = REQUESTS[name]
    problem = Problem(asked)
    dense = [iteration(problem.plan(candidate, "")) for candidate in safe(problem)]
    found = work.plan(asked, 12.0)
    first, _, second = (one.iteration for one in work.simulated[:3])
    assert [first, second] == pytest.approx(dense, rel=SAME)
    assert found.plan.iteration <= min(dense) * (1 + SAME)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", ["plain", "shared", "lossy", "calibrated"])
def test_with_time_enough_the_plan_is_that_without_a_limit(name, work):
    asked = REQUESTS[name]
    assert work.plan(asked, 1e9).plan.hash == found_by(Search(asked)).plan.hash


@pytest.mark.by_day(0)
def test_more_time_gives_better_plans(work):
    found = [work.plan(REQUESTS["shared"], limit).plan.iteration for limit in (0.5, 40.0, 1e9)]
    assert found[0] > found[1] >= found[2]


def test_an_interrupt_leaves_the_best_that_was_simulated(work):
    def interrupt(what: str, seconds: float) -> None:
        if what == "improvement":
            raise KeyboardInterrupt

    found = work.plan(replace(REQUESTS["shared"], report=interrupt), 1e9)
    assert found.stopped
    assert found.plan.iteration == min(one.iteration for one in work.simulated)


def test_an_interrupt_after_the_first_simulation_returns_that_plan(monkeypatch):
    def interrupt(search: Search, candidate: object, what: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Search, "offer", interrupt)
    found = Work(monkeypatch).plan(REQUESTS["plain"], 20.0)
    assert len(found.plan.launches) == 1


@pytest.mark.parametrize("name", ["shared", "lossy"])
def test_near_baselines_are_simulated_before_the_search(name, work):
    quick = Problem(REQUESTS[name], quick=True)
    every = near_baselines(quick, frozenset(), inf)
    seconds = [quick.evaluator.one(one) for one in every]
    assert seconds == sorted(seconds)
    assert max(len(one.choices) for one in every) > 2
    assert near_baselines(quick, frozenset(m.name for m in quick.prices.methods), inf) == []
    search = Search(REQUESTS[name], Deadline(1e3, work))
    near = near_baselines(search.quick, frozenset(), search.least)
    assert near == every[: sum(one <= FAR * search.least for one in seconds)]
    assert near[0] in [trial.placed.candidate for trial in search.trials.all]
    assert set(near) <= {trial.placed.candidate for trial in search.trials.all}


@pytest.mark.parametrize("ends", [OutOfTime, KeyboardInterrupt])
def test_what_an_improvement_has_gained_when_the_time_is_up_counts(ends, monkeypatch):
    sizes = [61_855, 2_121_401, 3_195, 2_090_610, 12_342, 30_313, 788_785, 27_051, 83_864, 1_248]
    request = Request(net=graph(sizes, seconds=1e-3), machine=machine(1, 4))
    search, seen = Search(request), []

    def noted(self: Search, seconds: float, candidate: Candidate) -> None:
        note(self, seconds, candidate)
        seen.append((seconds, candidate))
        raise ends

    note = Search._note
    monkeypatch.setattr(Search, "_note", noted)
    with suppress(KeyboardInterrupt):
        search.run()
    assert (search.least, search.leader) == seen[0]
