"""What an operation costs whose thread is awake: the first of a row wakes it, the others do not."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.net.measured import PROCESSOR, Measured
from commsched.program.model import Kind
from commsched.simulate.clocks import RESTED, asleep
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, plan

BUCKETS, NUMEL = 6, 10_000
STARTUP, GATHER, AWAKE = 3e-4, 2e-4, 0.25  # s, s, share


def spans(apart: float, kind: Kind, on) -> np.ndarray:
    """Start and end on each rank of a step's operations of a kind: (operations, 2, ranks) s."""
    net = graph([NUMEL] * BUCKETS, seconds=apart / 2)
    found = simulate(plan(net, on, ["ring+dense"]), 1).placed
    return np.array([(one.start, one.end) for one in found if one.op.kind is kind])


def waking(awake: float):
    on = replace(machine(2, 1), startup=STARTUP, awake=awake)
    return replace(on, device=replace(on.device, fixed_gather=GATHER))


@pytest.mark.parametrize("apart", [0.0, 1.0])
def test_of_exchanges_in_a_row_only_the_first_pays_for_waking_up(apart):
    lasts = [np.diff(spans(apart, Kind.EXCHANGE, waking(a)), axis=1)[:, 0] for a in (1.0, AWAKE)]
    saved = lasts[0] - lasts[1]
    later = 0.0 if apart else (1 - AWAKE) * STARTUP
    np.testing.assert_allclose(saved[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(saved[1:], later, rtol=1e-9, atol=1e-12)


def test_of_buckets_that_are_ready_together_only_the_first_pays_to_be_gathered():
    lasts = [np.diff(spans(0.0, Kind.ENCODE, waking(a)), axis=1)[:, 0] for a in (1.0, AWAKE)]
    saved = lasts[0] - lasts[1]
    np.testing.assert_allclose(saved[0], 0.0, atol=1e-12)
    np.testing.assert_allclose(saved[1:], (1 - AWAKE) * GATHER, rtol=1e-9)


def test_an_exchange_waits_for_the_rank_that_sleeps():
    on = replace(waking(0.0), coding_jitter=1.0, startup=1e-3)
    on = replace(on, device=replace(on.device, bandwidth=2e8))  # coding takes as long
    net = graph([NUMEL] * 40, seconds=0.0)
    found = simulate(plan(net, on, ["ring+dense"]), 1).placed
    coded = [one for one in found if one.op.kind is Kind.ENCODE]
    exchanged = [one for one in found if one.op.kind is Kind.EXCHANGE]
    whole = exchanged[0].end.max() - exchanged[0].start.max()
    some = 0
    for encode, before, one in zip(coded[1:], exchanged, exchanged[1:], strict=False):
        sleeps = encode.end > before.end
        some += sleeps.any() and not sleeps.all()
        expected = whole - (0.0 if sleeps.any() else 1e-3)
        assert one.end.max() - one.start.max() == pytest.approx(expected, rel=1e-9)
    assert some  # ranks: one sleeps, and the other does not


def test_nothing_takes_less_than_the_share_of_a_thread_that_is_awake():
    on = replace(waking(0.0), native=((1.0, 1e-5), (1e9, 1e-5)))  # less than the start-up
    net = graph([NUMEL] * BUCKETS, seconds=0.0)
    found = simulate(plan(net, on, ["native+dense"]), 1).placed
    ends = [one.end - one.start for one in found if one.op.kind is Kind.EXCHANGE]
    assert min(each.min() for each in ends) >= 0.0


@pytest.mark.parametrize("awake", [1.0, 0.5])
def test_only_exchanges_that_wake_a_thread_up_take_processor_time_for_it(awake):
    net = replace(
        graph([NUMEL] * BUCKETS, seconds=5e-3),
        measured=Measured(device=PROCESSOR, source="a test"),
    )
    layers = [replace(layer, backward=0.0) for layer in net.layers]
    layers[0] = replace(layers[0], backward=0.1)
    net, ends = replace(net, layers=tuple(layers)), []
    for dispatch in (0.0, 1e-3):
        on = replace(machine(2, 1), startup=1e-6, cores=1, awake=awake, dispatch=dispatch)
        ends.append(simulate(plan(net, on, ["ring+dense"]), 1).timeline().end.max())
    assert ends[1] - ends[0] == pytest.approx(1e-3, rel=0.15)  # the first one does


@pytest.mark.parametrize("cooling", [0.0, 1e-6, 1e-3, 1.0])
def test_a_thread_is_the_colder_the_longer_it_sleeps_up_to_a_long_sleep(cooling):
    times = [0.0, 1e-4, 1e-3, RESTED, 1.0, np.inf]
    found = [asleep(slept, cooling) for slept in times]
    assert found == sorted(found)
    assert (found[0], *found[3:]) == (0.0, 1.0, 1.0, 1.0)
    if not cooling:
        assert found[1] == 1.0
    else:  # Michaelis and Menten's law, 1 at RESTED
        most = (RESTED + cooling) / RESTED
        assert found[2] == pytest.approx(most * 1e-3 / (1e-3 + cooling))


@pytest.mark.parametrize("apart", [5e-4, 2e-3, 1.0])
def test_an_exchange_soon_after_another_takes_a_part_of_waking_up(apart):
    machines = waking(1.0), replace(waking(AWAKE), cooling=2e-3)
    whole, part = (spans(apart, Kind.EXCHANGE, on)[..., 0] for on in machines)
    slept = part[1:, 0] - part[:-1, 1]
    share = [AWAKE + (1 - AWAKE) * asleep(float(each), 2e-3) for each in slept]
    saved = (whole[:, 1] - whole[:, 0] - part[:, 1] + part[:, 0])[1:]
    np.testing.assert_allclose(saved, STARTUP * (1 - np.array(share)), rtol=1e-6, atol=1e-12)
