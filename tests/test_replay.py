"""Replays of runs that changed their plan: what the simulator follows, and what it cannot know."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.plan import file as plan_file
from commsched.simulate.engine import simulate
from commsched.simulate.replay import replay
from commsched.timeline import check
from commsched.timeline import file as timeline_file
from commsched.timeline.header import header_from_data
from commsched.timeline.model import Timeline
from tests.support.overlaps import overlaps
from tests.support.small_plans import graph, machine, plan

LOSSY, DENSE = "all-gather+topk:0.05", "ring+dense"
STEPS, FIRST, SECOND = 9, 3, 5


def made(overlap="backward", jitter=0.0):
    on = machine(2, 2, jitter)
    return plan(graph([4000, 900, 300]), on, [LOSSY], max_error=0.1, params={"overlap": overlap})


def without(old, *names):
    """The plan of a run whose launches with these names became dense."""
    launches = (
        replace(one, method=DENSE, reason=None) if one.name in names else one
        for one in old.launches
    )
    return replace(old, launches=tuple(launches))


def fall(name, since):
    return {"launches": [name], "dense": [DENSE], "since": since, "tensor": "t", "error": None}


def switch(to, step, why="one tensor left the error budget"):
    return {"step": step, "plan": to.hash, "why": why}


def measured(of, *switches, falls=()):
    meta = {"switches": list(switches), "fallbacks": list(falls), "hosts": ["h"]}
    return replace(simulate(of, 1).timeline(), header=header_from_data("measured", meta))


def twice(of):
    """A run in which two launches fell back, one after the other."""
    one = without(of, "b0")
    two = without(one, "b2")
    falls = [fall("b0", FIRST), fall("b2", SECOND)]
    return one, two, measured(of, switch(one, FIRST), switch(two, SECOND), falls=falls)


def test_fallbacks_are_followed_to_the_plans_that_the_run_had():
    of = made()
    one, two, timeline = twice(of)
    for steps, want in [(STEPS, {FIRST: one, SECOND: two}), (SECOND, {FIRST: one}), (FIRST, {})]:
        found = replay(of, timeline, steps, "m").changes
        assert {step: plan.hash for step, plan in found.items()} == {
            step: plan.hash for step, plan in want.items()
        }


def shape_of(timeline: Timeline, first: int, stop: int):
    """Spans of some steps, counted from the beginning of the first of them."""
    keep = (timeline.step >= first) & (timeline.step < stop)
    start = timeline.start[keep].min()
    return [
        (
            s.rank,
            s.name,
            s.step - first,
            s.nbytes,
            round(s.start - start, 12),
            round(s.end - start, 12),
        )
        for s in timeline.select(keep)
    ]


def test_each_stretch_of_a_replay_is_a_simulation_of_its_plan():
    of = made()
    one, two, timeline = twice(of)
    changes = replay(of, timeline, STEPS, "m").changes
    found = simulate(of, STEPS, changes=changes).timeline()
    assert overlaps(found) == []
    assert check.problem(found) is None
    for first, stop, plan_there in [(0, FIRST, of), (FIRST, SECOND, one), (SECOND, STEPS, two)]:
        alone = simulate(plan_there, stop - first).timeline()
        assert sorted(shape_of(found, first, stop)) == sorted(shape_of(alone, 0, stop - first))
    assert found.plan_hash == of.hash


@pytest.mark.parametrize("overlap", ["forward", "backward"])
def test_at_a_change_all_ranks_wait_for_all_that_was_under_way(overlap):
    of = made(overlap, jitter=0.2)
    changes = replay(of, twice(of)[2], STEPS, "m").changes
    found = simulate(of, STEPS, changes=changes)
    for step in (FIRST, SECOND):
        over = max(p.end.max() for p in found.placed if p.step < step)
        begun = [p.start for p in found.placed if p.step == step]
        assert np.min(begun) == over
    path = found.critical_path
    assert sum(part.seconds for part in path) == pytest.approx(
        max(p.end.max() for p in found.placed), rel=1e-9
    )
    assert [part.step for part in path] == sorted(part.step for part in path)


def test_a_change_to_a_plan_that_nobody_kept_is_refused_with_its_step():
    of = made()
    other = replace(of, seed=7)
    timeline = measured(of, switch(other, FIRST, "exchanges took 3 of the predicted time"))
    with pytest.raises(CommschedError) as refusal:
        replay(of, timeline, STEPS, "m.json")
    assert str(refusal.value) == (
        f"m.json: from step 3 on the run followed plan {other.hash[:12]}, which the timeline does"
        " not hold (exchanges took 3 of the predicted time); nearest: --steps 3"
    )
    assert replay(of, timeline, FIRST, "m.json").changes == {}


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({"switches": [{"step": 0, "plan": "x", "why": ""}]}, "`int` >= 1"),
        ({"switches": [{"step": 1, "plan": "x"}]}, "missing required field `why`"),
        ({"switches": 3}, "expected `array | null`, got `int`"),
        ({"decisions": {"0/b0/switch/decide": "many"}}, "expected `float | null`, got `str`"),
        (
            {
                "switches": [{"step": 2, "plan": "x", "why": ""}],
                "fallbacks": [{"launches": ["b0"], "dense": ["rign+dense"], "since": 2}],
            },
            "from step 2 on the run followed plan x, which the timeline does not hold",
        ),
    ],
)
def test_meta_that_is_none_is_refused_in_one_sentence(meta, reason):
    of = made()
    timeline = simulate(of, 1).timeline()

    def followed():
        header = header_from_data("measured", meta, "m.json: ")
        replay(of, replace(timeline, header=header), STEPS, "m.json")

    with pytest.raises(CommschedError) as refusal:
        followed()
    assert str(refusal.value).startswith("m.json: ")
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_command_follows_a_change(tmp_path, capsys):
    of = made()
    one, _, timeline = twice(of)
    plan_file.write(tmp_path / "plan.json", of)
    timeline_file.write(tmp_path / "m.json", timeline)
    words = ["simulate", str(tmp_path / "plan.json"), "--replay", str(tmp_path / "m.json")]
    assert main([*words, "--steps", "5", "-o", str(tmp_path / "p.json")]) == 0
    found = timeline_file.read(tmp_path / "p.json")
    sent = [int(found.nbytes[found.step == step].sum()) for step in range(5)]
    before, after = (simulate(p, 1).timeline().nbytes.sum() for p in (of, one))
    assert sent == [before] * 3 + [after] * 2
