"""The fit of a calibration: few factors, found again from a workload that a machine predicts."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.calibrate import back_to_back, workload
from commsched.calibrate.cell_times import predict
from commsched.calibrate.fit import FACTORS, adjusted, fit, matters
from commsched.cost.least_squares import NOISE
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
    (first, *_, last) = back_to_back.exchanges(right)
    behind = (last.end.max() - first.end.max()) / (back_to_back.BUCKETS - 1)
    found = back_to_back.awake(replace(right, awake=0.5), behind)
    assert found == pytest.approx(share, abs=1e-6)
