"""The fit of a calibration: few factors, found again from a workload that a machine predicts."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.calibrate import short_sleeps, workload
from commsched.calibrate.cell_times import predict
from commsched.calibrate.fit import FACTORS, adjusted, fit, matters
from commsched.cost.least_squares import NOISE
from commsched.program.model import Kind
from commsched.program.parts import CodingTime
from commsched.simulate.clocks import RESTED, SOON, Waking, asleep
from commsched.simulate.engine import simulate
from tests.support.small_plans import machine


@pytest.mark.parametrize(("nodes", "lanes"), [(1, 2), (1, 4), (2, 1), (2, 2), (3, 2), (8, 1)])
def test_there_are_at_most_a_third_as_many_factors_as_fitted_cells(nodes, lanes):
    on = machine(nodes, lanes)
    cells = workload.choose(on, 10.0)
    factors = [name for name in FACTORS if matters(on, name)]
    assert len(factors) <= (~workload.held_out(cells)).sum() / 3


def test_cells_of_the_exercise_begin_as_far_apart_as_asked():
    right = machine(2, 2)
    pauses = [1.0, 2.0, 0.5, 3.0]
    made = workload.apart(workload.make_plan(right, workload.choose(right, 5.0)[:3]), pauses)
    found = {one.op.name: float(one.start.min()) for one in simulate(made, 1).placed}
    starts = [found[f"c{number}/encode"] for number in range(3)]
    np.testing.assert_allclose(starts, np.cumsum(pauses[:3]))


def test_the_fit_finds_what_a_machine_was_off_by():
    off = {"startup": 2.0, "latency between": 1.2, "gather": 1.5}
    right = replace(machine(2, 2), startup=2e-4, wakeup=1e-4)
    cells = workload.choose(right, 5.0)
    held = workload.held_out(cells)
    times = predict(workload.make_plan(right, cells))
    plan = workload.make_plan(adjusted(right, off), cells)
    assert np.abs(np.log(predict(plan).exchange / times.exchange)).max() > 0.1
    found = fit(plan, times, ~held, lambda: None)
    again = predict(replace(plan, machine=found))
    checked = held[times.cell]
    for made, true in ((again.exchange, times.exchange), (again.encode, times.encode)):
        np.testing.assert_allclose(made[checked], true[checked], rtol=NOISE)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_of_the_start_up_is_the_one_with_which_exchanges_follow_as_measured(share):
    right = replace(machine(2, 2), startup=2e-4, awake=share)
    placed = simulate(short_sleeps.make_plan(right), 1).placed
    ends = [one.end.max() for one in placed if one.op.kind is Kind.EXCHANGE]
    behind = (ends[-1] - ends[0]) / (short_sleeps.BUCKETS - 1)
    found = short_sleeps.awake(replace(right, awake=0.5), behind)
    assert found == pytest.approx(share, abs=1e-6)


@pytest.mark.parametrize("cooling", [0.0, 5e-4, 1e-2])
def test_threads_cool_down_as_slowly_as_lets_exchanges_take_what_was_measured(cooling):
    right = replace(machine(2, 2), startup=2e-4, handover=5e-5, awake=0.1, cooling=cooling)
    placed = simulate(short_sleeps.make_plan(right, SOON), 1).placed
    starts = [one.start.max() for one in placed if one.op.kind is Kind.ENCODE]
    ends = [one.end.max() for one in placed if one.op.kind is Kind.EXCHANGE]
    soon = float(np.mean(np.subtract(ends, starts)[1:]))
    found = short_sleeps.cooling(replace(right, cooling=1.0), soon)
    assert found == pytest.approx(cooling, rel=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("cooling", [0.0, 5e-4, 1e-2])
def test_a_hand_over_takes_what_was_measured_after_short_and_long_sleeps(share, cooling):
    whole = replace(machine(2, 2), startup=2e-4, handover=5e-5, awake=0.1, cooling=cooling)
    behind = short_sleeps.Short(seconds=1e-5, handover=5e-5)
    soon = short_sleeps.Short(seconds=1e-4, handover=share * 5e-5)
    found = short_sleeps.added(whole, behind, soon, whole.handover)
    assert found.handover_awake == pytest.approx(share)
    law = Waking.of(replace(whole, handover_awake=share), CodingTime())
    sleeps = np.array([1e-5, SOON, 1e-3, 2e-3, RESTED, 1.0])
    taken = law.handed_over(asleep(sleeps, cooling))
    assert taken[-2:] == pytest.approx([1.0, 1.0])
    if cooling:
        assert taken[:2] == pytest.approx([share, share])
        assert (np.diff(taken) >= -1e-12).all()


def test_hand_overs_are_the_shorter_the_less_a_thread_has_slept():
    """With any draw, a hand-over in the row of buckets is that share of a whole one."""
    whole = replace(machine(2, 2), handover=5e-5, awake=0.5, cooling=2e-3)
    gaps = []
    for on in (whole, replace(whole, handover_awake=0.2)):
        placed = simulate(short_sleeps.make_plan(on, SOON), 1).placed
        sent, decoded = (
            [one for one in placed if one.op.kind is kind] for kind in (Kind.EXCHANGE, Kind.DECODE)
        )
        late = [d.start - s.end for s, d in zip(sent, decoded, strict=True)]
        slept = [s.end - d.end for s, d in zip(sent[1:], decoded, strict=False)]
        gaps.append((np.array(late[1:]), np.array(slept)))
    (full, _), (part, slept) = gaps
    law = Waking.of(replace(whole, handover_awake=0.2), CodingTime())
    np.testing.assert_allclose(part, full * law.handed_over(asleep(slept, 2e-3)), rtol=1e-6)
