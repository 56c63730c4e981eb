"""What exchanges and coding take of a core: found again from what the simulator charges."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.calibrate import workload
from commsched.calibrate.cell_times import kinds_of, predict
from commsched.calibrate.processor_costs import ProcessorCosts, interrupts_of_full_port
from commsched.machine.relink import relinked
from commsched.net.measured import PROCESSOR, Measured
from commsched.program.model import Kind
from commsched.program.parts import HANDOVERS, SLICE, CodingTime
from commsched.simulate.core_sharing import CoreSharing
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, plan

HOST = Measured(device=PROCESSOR, source="a test")


def charged(monkeypatch, made, hot):
    """Predict the times of a plan, with the seconds of a core that the simulator charges."""
    placed: list[CoreSharing] = []
    slower = CoreSharing.slower

    def noted(self, ranks_of):
        placed.append(self)
        return slower(self, ranks_of)

    with monkeypatch.context() as patched:
        patched.setattr(CoreSharing, "slower", noted)
        times = predict(made)
    row = {name: row for name, row in kinds_of(made)[1].items() if row < len(times.exchange)}
    found = np.zeros(len(times.exchange))
    last = placed[-1]
    for (_, _, name), task in last.tasks.items():
        if name in row:
            found[row[name]] += task.demand * task.seconds.mean() * made.machine.alone
    # In the order in which operations are placed; exchanges as the plan has them.
    every = np.array([taken.mean() for _, _, taken in last.at_once])
    found += every[every > 1.5 * hot]
    taken_up = every[every <= 1.5 * hot]
    assert taken_up.sum() == pytest.approx(3 * len(found) * hot)  # encode, exchange, decode
    return times._replace(processor=found + 3 * hot, handover=hot)


COSTS = [(6e-4, 5e-5, 0.2), (1e-3, 2e-6, 0.4), (1e-4, 2e-4, 0.3)]  # dispatch, message, busy


def machines(dispatch, message, busy, **traits):
    """A machine with these costs, and one whose costs are unknown."""

    def polled(link):
        return replace(link, busy=busy)

    bare = replace(machine(2, 2), cores=2, handover_awake=1.0, **traits)
    costs = {"dispatch": dispatch, "message": message}
    return relinked(replace(bare, **costs), inside=polled, between=polled), bare


@pytest.mark.parametrize("handover", [0.0, 2e-5])
@pytest.mark.parametrize(("dispatch", "message", "busy"), COSTS)
def test_the_costs_of_exchanges_are_found_in_what_the_simulator_charges(
    monkeypatch, dispatch, message, busy, handover
):
    right, bare = machines(dispatch, message, busy, handover=handover)
    made = workload.computing(workload.make_plan(right, workload.choose(right, 5.0)))
    measured = charged(monkeypatch, made, handover)
    unknown = replace(made, machine=bare)
    found, _ = ProcessorCosts(unknown, measured, measured).fitted(bare)
    assert found.dispatch == pytest.approx(dispatch, rel=0.1)
    assert found.between.busy == found.inside.busy == pytest.approx(busy, rel=0.1)
    assert found.message == pytest.approx(message, rel=0.1, abs=2e-6)


@pytest.mark.parametrize(("dispatch", "message", "busy"), COSTS)
def test_ranks_that_compute_look_for_messages_while_these_wait_for_a_core(
    monkeypatch, dispatch, message, busy
):
    right, bare = machines(dispatch, message, busy, wakeup=1e-3)
    made = workload.make_plan(right, workload.choose(right, 5.0))
    plans = [made, workload.computing(made)]
    idle, measured = (charged(monkeypatch, plan, 0.0) for plan in plans)
    assert (measured.exchange > idle.exchange).all()
    unknown = replace(plans[1], machine=bare)
    found, _ = ProcessorCosts(unknown, measured, idle).fitted(bare)
    assert found.between.busy == found.inside.busy == pytest.approx(busy, rel=0.1)
    assert found.message == pytest.approx(message, rel=0.1, abs=2e-6)


def test_interrupts_are_those_of_a_full_port():
    """Beside an exchange that fills a port for a part of its time they take less of a rank."""
    on = replace(machine(2, 1), cores=2)
    made = workload.computing(plan(graph([1_000_000]), on, ["ring+dense"]))
    times = predict(made)
    full = 4e6 * on.between.per_byte  # s: a ring of two ranks sends as many bytes as a bucket has
    (lasts,) = times.exchange.tolist()
    measured = times._replace(exchange=np.array([4 * lasts]), interrupts=0.1)
    assert interrupts_of_full_port(made, measured) == pytest.approx(0.1 * 4 * lasts / full)
    assert interrupts_of_full_port(made, measured._replace(interrupts=0.9)) == 1.0
    short = times._replace(exchange=np.array([full / 2]), interrupts=0.1)
    assert interrupts_of_full_port(made, short) == pytest.approx(0.1)  # more than full it cannot be


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


def test_threads_that_take_up_operations_work_on_the_core_that_a_rank_computes_on():
    """The last layer's bucket is encoded, exchanged and decoded under the first one's backward."""
    net = replace(graph([1_000] * 2), measured=HOST)
    ends = []
    for share in (0.0, 0.5):
        on = replace(machine(2, 1), cores=1, handover=1e-4, handover_awake=share)
        placed = simulate(plan(net, on, ["ring+dense"] * 2), 1).placed
        (last,) = [one for one in placed if one.op.name == "backward/l0" and one.step == 0]
        ends.append(last.end.max())
    assert ends[1] - ends[0] == pytest.approx(HANDOVERS * 0.5 * 1e-4, rel=1e-2)
