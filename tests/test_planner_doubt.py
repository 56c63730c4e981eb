"""Errors that a calibration held out: what they add to a candidate, and which plan they prefer."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.cli.reasons import notes
from commsched.errors import CommschedError
from commsched.machine.fabric import HeldOut
from commsched.machine.model import Machine
from commsched.plan.model import Reason
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.candidates import Search
from commsched.planner.search.improve import GAIN
from commsched.planner.search.problem import BASELINES, Problem
from commsched.planner.search.risk import Risk
from commsched.planner.search.timing import iteration
from commsched.planner.space import Candidate
from tests.support import sampling
from tests.support.small_plans import graph, machine, plan

SIZES = [40_000, 3_000, 500, 120_000, 9_000, 60_000]


def cells(*seconds: tuple[float, float]) -> tuple[HeldOut, ...]:
    """Held-out exchanges: s as predicted and as measured."""
    return tuple(
        HeldOut(name=f"cell {k}", predicted=p, measured=m) for k, (p, m) in enumerate(seconds)
    )


def problem_on(on: Machine) -> Problem:
    return Problem(Request(net=graph(SIZES, seconds=1e-4), machine=on))


def candidate_of(problem: Problem, limit: float) -> Candidate:
    made = problem.filled(limit)
    return problem.uniform(made, late=True)


@given(limit=st.sampled_from([1e3, 1e5, 1e6]), factor=st.sampled_from([0.5, 1.0, 1.7]))
@settings(max_examples=sampling.examples(10))
def test_where_all_errors_are_equal_every_launch_lasts_as_much_longer(limit, factor):
    problem = problem_on(machine(2, 2))
    candidate = candidate_of(problem, limit)
    doubt = Risk(cells(*((t, factor * t) for t in (1e-4, 1e-3, 1e-2))))
    times = np.array([factor, 1.0, factor, 1.0])[:, None, None]  # coding lasts as predicted
    longer = problem.lasting(lambda rows: rows._replace(seconds=times * rows.seconds))
    want = longer.evaluator.one(candidate)
    assert problem.lasting(doubt.mean).evaluator.one(candidate) == pytest.approx(want, rel=1e-12)
    got = problem.evaluator.one(candidate) + doubt.extra(problem, candidate)
    assert got == pytest.approx(want, rel=1e-12)


def test_an_exchange_errs_like_those_that_last_about_as_long():
    problem = problem_on(machine(2, 2))
    short, long = (problem.evaluator.rows(candidate_of(problem, n).choices) for n in (1.0, 1e9))
    first, last = (rows.seconds[2].sum(axis=0).max() for rows in (short, long))
    assert first < last
    times = first * np.array([0.6, 0.8, 1.0, 1.1]), last * np.array([0.9, 1.0, 1.2, 1.4])
    doubt = Risk(cells(*((t, 3 * t) for t in times[0]), *((t, t) for t in times[1])))
    np.testing.assert_allclose(doubt.mean(long).seconds, long.seconds)
    at = short.seconds[2].sum(axis=0).argmin()
    np.testing.assert_allclose(doubt.mean(short).seconds[2, :, at], 3 * short.seconds[2, :, at])


def test_what_just_hides_its_exchanges_suffers_more_than_what_has_time_to_spare():
    """Errors that are right in the mean cost nothing where there is time, but never give any."""
    problem = problem_on(machine(2, 2))
    candidate = candidate_of(problem, 1e6)
    doubt = Risk(cells(*((1e-3, s) for s in (0.5e-3, 1.5e-3, 0.5e-3, 1.5e-3))))
    hidden = problem.lasting(lambda rows: rows._replace(seconds=1e-3 * rows.seconds))
    assert doubt.extra(hidden, candidate) == pytest.approx(0.0, abs=1e-12)
    assert doubt.extra(problem, candidate) >= -1e-12


GROWING = cells((1e-4, 4e-4), (3e-4, 6e-4), (1e-3, 1.1e-3), (1e-2, 1e-2))
UNEVEN = [61_855, 2_121_401, 3_195, 2_090_610, 12_342, 30_313, 788_785, 27_051, 83_864, 1_248]
DOUBLED = cells((1e-3, 2e-3), (1e-2, 2e-2))


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("lanes", "sizes", "seconds", "held_out", "lossy"),
    [
        (4, UNEVEN, 1e-3, DOUBLED, ()),
        (4, UNEVEN, 1e-3, GROWING, ()),
        (4, UNEVEN, 1.0, DOUBLED, ()),
        (2, [n * 20 for n in SIZES], 1e-3, GROWING, ()),
        (2, [n * 20 for n in SIZES], 1e-3, GROWING, ("topk", "qsgd")),
    ],
)
def test_with_such_errors_a_plan_is_not_expected_behind_a_baseline(
    lanes, sizes, seconds, held_out, lossy
):
    on = replace(machine(4 // lanes, lanes, jitter=0.02), held_out=held_out)
    request = Request(net=graph(sizes, seconds), machine=on, lossy=lossy)
    search = Search(request)
    search.run()
    (problem, candidate), _ = search.result()
    ours, doubt = problem.plan(candidate, "best"), Risk(held_out)
    expected = iteration(ours) + doubt.extra(problem, candidate)
    tried = [(t.seconds + doubt.extra(*t.placed), t.placed.candidate) for t in search.trials.all]
    least = min(seconds for seconds, _ in tried)
    same = [len(found.choices) for seconds, found in tried if seconds <= least * (1 + GAIN)]
    assert expected <= least * (1 + GAIN)
    assert len(candidate.choices) == min(same)
    for name in BASELINES:
        try:
            candidate = problem.within(BASELINES[name](problem))
        except CommschedError:
            continue  # it needs a codec that is not allowed
        theirs = iteration(problem.plan(candidate, name)) + doubt.extra(problem, candidate)
        assert expected <= theirs * (1 + GAIN), name
    surer = make_plan(replace(request, machine=replace(on, held_out=())))
    assert surer.iteration <= iteration(ours) * (1 + 1e-9)


@pytest.mark.parametrize(("margin", "told"), [(-1e-3, True), (0.0, False)])
def test_the_table_says_what_a_margin_below_zero_means(margin, told):
    made = plan(graph([10]), machine(), ["ring+dense"])
    why = Reason(seconds=1e-3, runner_up="ring+coo", runner_up_seconds=2e-3, margin=margin)
    made = replace(made, launches=(replace(made.launches[0], reason=why),))
    assert any("margin below 0" in line for line in notes(made)) == told
