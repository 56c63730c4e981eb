"""What exchanges and coding take of a core: found again from what the simulator charges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.calibrate import short_sleeps, workload
from commsched.calibrate.cell_times import kinds_of, predict
from commsched.calibrate.processor_costs import with_processor_costs
from commsched.calibrate.short_sleeps import Short
from commsched.cost.chain import messages_of_a_rank
from commsched.exchange.method import resolved
from commsched.exchange.registry import phases_of
from commsched.machine.relink import relinked
from commsched.net.measured import PROCESSOR, Measured
from commsched.program.model import Kind
from commsched.program.parts import SLICE, CodingTime
from commsched.simulate.core_sharing import CoreSharing
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, plan

HOST = Measured(device=PROCESSOR, source="a test")


@pytest.mark.parametrize(
    ("dispatch", "message", "busy"), [(6e-4, 5e-5, 0.2), (1e-3, 2e-6, 0.4), (1e-4, 2e-4, 0.3)]
)
def test_the_costs_of_exchanges_are_found_in_what_the_simulator_charges(
    monkeypatch, dispatch, message, busy
):
    def polled(link):
        return replace(link, busy=busy)

    costs = {"dispatch": dispatch, "message": message}
    right = relinked(replace(machine(2, 2), cores=2, **costs), inside=polled, between=polled)
    cells = workload.choose(right, 5.0)
    made = workload.computing(workload.make_plan(right, cells))
    placed: list[CoreSharing] = []
    slower = CoreSharing.slower

    def noted(self, ranks_of):
        placed.append(self)
        return slower(self, ranks_of)

    monkeypatch.setattr(CoreSharing, "slower", noted)
    times = predict(made)
    row = {name: row for name, row in kinds_of(made)[1].items() if row < len(times.exchange)}
    charged = np.zeros(len(times.exchange))
    last = placed[-1]
    for (_, _, name), task in last.tasks.items():
        if name in row:
            charged[row[name]] += task.demand * task.seconds.mean() * right.alone
    # `dispatched` has the exchanges in the order in which they are placed, as the plan has them.
    charged += [taken.mean() for _, _, taken in last.dispatched]
    unknown = replace(made, machine=replace(machine(2, 2), cores=2))
    phase = resolved(phases_of(short_sleeps.make_plan(right), 0)[0])
    messages = messages_of_a_rank(phase.schedule, phase.payload, right, right.everyone)
    taken = message * messages + busy * 1e-4
    short = (
        Short(1e-4, taken, 0.0),
        Short(1e-4, dispatch + taken, 0.0),
    )  # it does not cool down slowly
    found = with_processor_costs([unknown], [times._replace(processor=charged)], short)
    assert found.dispatch == pytest.approx(dispatch, rel=0.1)
    assert found.between.busy == found.inside.busy == pytest.approx(busy, rel=0.1)
    assert found.message == pytest.approx(message, rel=0.1, abs=2e-6)


@given(price=st.floats(1e-6, 1.0), ranks=st.sampled_from([1, 2, 4]))
def test_coding_beside_computing_takes_its_price_of_the_cores_however_long_it_lasts(price, ranks):
    """It lasts as if it were alone for a slice, and as if all ranks coded from then on."""
    time = CodingTime(cold=1e-4, alone=1 / ranks, slice=SLICE)
    lasts = time.lasts(price)
    np.testing.assert_allclose(time.work(lasts), price + 1e-4)
    first = min((price + 1e-4) / ranks, SLICE)
    np.testing.assert_allclose(lasts, first + (price + 1e-4 - ranks * first))


def test_coding_on_a_rank_that_computes_takes_cold_seconds_more():
    """Nothing else is under way in the last bucket's coding; an accelerator empties no caches."""
    net, on = graph([100_000] * 2, seconds=1e-2), replace(machine(2, 2), cores=1)
    lasts = {}
    for measured in (None, HOST):
        for cold in (0.0, 1e-4):
            made = plan(replace(net, measured=measured), replace(on, cold=cold), ["ring+fp16"])
            lasts[measured, cold] = [
                (one.end - one.start).max()
                for one in simulate(made, 1).placed
                if one.op.kind in (Kind.ENCODE, Kind.DECODE)
            ][-2:]
    more = np.subtract(lasts[HOST, 1e-4], lasts[HOST, 0.0])
    np.testing.assert_allclose(more, 1e-4, rtol=1e-6)
    assert lasts[None, 1e-4] == lasts[None, 0.0]
