"""Ports that let bytes through in lumps: a free burst after a rest, and ranks that take turns."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.calibrate.links import without_burst
from commsched.coding.registry import CODECS
from commsched.cost.play import play
from commsched.exchange.node_lanes import node_lanes
from commsched.exchange.payload import Payload
from commsched.machine.model import CodecRate, Link, Machine, Nic
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan
from commsched.program.model import Kind
from commsched.schedule.registry import COLLECTIVES
from commsched.simulate.engine import simulate
from tests.support.exchanges import DEVICE, ROUTES, SLOW, carry, filled, played

FREE = Link(latency=0.0, overhead=0.0, per_byte=0.0)
BURST = 5e-7  # s; 5000 B of SLOW


def ends(name: str, on: Machine, numel: int, rest: float) -> np.ndarray:
    """When each rank of all is through with an exchange that starts at 0."""
    schedule = COLLECTIVES[name](on.everyone)
    payload = carry(schedule, "dense", BucketSpec.uniform(numel))
    return play(schedule, payload, on, on.everyone, np.zeros(on.size), rest).end


@pytest.mark.parametrize("numel", [100, 2_000, 50_000])
@pytest.mark.parametrize("rest", [0.0, 2e-7, 1.0])
def test_a_message_after_a_rest_is_early_by_the_burst_but_not_before_its_latency(numel, rest):
    rate = CodecRate(encode=0.0, add=0.0, decode=0.0)
    on = filled(2, 1, burst=BURST, device=replace(DEVICE, codecs={"dense": rate}))
    away = SLOW.latency + SLOW.overhead
    nbytes = carry(COLLECTIVES["doubling"](on.everyone), "dense", BucketSpec.uniform(numel)).wire(
        np.array([0]), np.array([1]), 1
    )[0]
    whole = away + nbytes * SLOW.per_byte + SLOW.overhead
    expected = max(away, whole - min(rest, BURST))
    np.testing.assert_allclose(ends("doubling", on, numel, rest), expected, rtol=1e-12)


@given(name=st.sampled_from(ROUTES), nodes=st.integers(2, 5), lanes=st.integers(1, 3))
def test_without_a_rest_a_burst_changes_no_exchange_that_keeps_its_ports_busy(name, nodes, lanes):
    """Ports that wait within the exchange regain it, so that it may end earlier, never later."""
    on = filled(nodes, lanes)
    without = ends(name, on, 20_000, 1.0)
    with_burst = ends(name, replace(on, burst=BURST), 20_000, 0.0)
    assert (with_burst <= without * (1 + 1e-12)).all()
    # The first message of a port gains nothing: nobody is through before one message's time.
    np.testing.assert_allclose(played(name, on, 20_000).end, without, rtol=1e-12)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_curve_of_rested_ports_predicts_those_that_have_not_rested(nodes):
    """Calibration measures rings after rests; in training ports may never rest."""
    rate = CodecRate(encode=0.0, add=0.0, decode=0.0)
    on = filled(nodes, 1, burst=BURST, device=replace(DEVICE, codecs={"dense": rate}))
    on = replace(on, between=Link(latency=1e-8, overhead=0.0, per_byte=SLOW.per_byte))
    hops, numels = 2 * (nodes - 1), nodes * np.array([10, 1_000, 4_000, 16_000, 64_000])
    times = [ends("ring", on, n, 1.0).max() for n in numels.tolist()]
    seconds = np.maximum(np.array(times) / hops - on.between.latency, 0.0)
    points = [(0.0, 0.0), *zip((4.0 * numels / nodes).tolist(), seconds.tolist(), strict=True)]
    measured = replace(on.between, points=tuple(points))
    found = replace(on, between=without_burst(measured, BURST, hops))
    for numel, lasted in zip(numels[1:].tolist(), times[1:], strict=True):
        rested = ends("ring", found, numel, 1.0).max()
        assert rested == pytest.approx(lasted, rel=0.05)
        tired, true = (ends("ring", each, numel, 0.0).max() for each in (found, on))
        assert tired == pytest.approx(true, rel=0.03)
    # As measured, the burst would count twice after a rest, and once where there is none.
    twice = replace(on, between=measured)
    assert ends("ring", twice, numels[1], 0.0).max() < 0.95 * ends("ring", on, numels[1], 0.0).max()


@given(name=st.sampled_from(ROUTES), nodes=st.integers(2, 5), rest=st.floats(0.0, 1e-6))
def test_no_port_passes_more_than_its_rate_and_one_burst(name, nodes, rest):
    on = filled(nodes, 1, burst=BURST)
    schedule = COLLECTIVES[name](on.everyone)
    payload = carry(schedule, "dense", BucketSpec.uniform(20_000))
    passed = np.zeros(nodes)
    for rnd in schedule.rounds():
        np.add.at(passed, rnd.src, payload.wire(rnd.first, rnd.stop, 1))
    last = ends(name, on, 20_000, rest).max()
    assert last >= passed.max() * SLOW.per_byte - min(rest, BURST)


@given(
    name=st.sampled_from(ROUTES),
    nodes=st.integers(2, 5),
    apart=st.lists(st.floats(0.0, 1e-6), min_size=1, max_size=6),
    numel=st.integers(1, 5_000),
)
def test_exchanges_after_each_other_pass_no_more_than_the_rate_and_one_burst(
    name, nodes, apart, numel
):
    """What a port has left after an exchange is there for the next one, and no more."""
    on = filled(nodes, 1, burst=BURST)
    schedule = COLLECTIVES[name](on.everyone)
    payload = carry(schedule, "dense", BucketSpec.uniform(numel))
    passed = np.zeros(nodes)
    for rnd in schedule.rounds():
        np.add.at(passed, rnd.src, payload.wire(rnd.first, rnd.stop, 1))
    start, rest = np.zeros(nodes), np.full(nodes, BURST)
    for pause in apart:
        one = play(schedule, payload, on, on.everyone, start, rest)
        assert (one.end >= start).all()
        start, rest = one.end + pause, one.rest + pause
    assert one.end.max() >= len(apart) * passed.max() * SLOW.per_byte - BURST


def test_short_buckets_that_fit_into_a_burst_do_not_wait_for_the_port():
    tensors = tuple(Tensor(name=f"t{k}", shape=(50,)) for k in range(4))
    layer = Layer(name="l", forward=1e-3, backward=1e-3, tensors=tensors)

    def seconds(burst: float) -> list[float]:
        launches = tuple(
            Launch(
                name=t.name,
                pieces=(Piece(t.name, 0, 50),),
                after="l",
                method="doubling+dense",
                stream="between",
            )
            for t in tensors
        )
        net, on = Net(name="short", layers=(layer,)), filled(2, 1, burst=burst)
        plan = Plan(net=net, machine=on, launches=launches, planner="test")
        placed = [one for one in simulate(plan, 2).placed if one.op.kind is Kind.EXCHANGE]
        assert len(placed) == 8
        return [float((one.end - one.start).max()) for one in placed]

    burst = 8 * (4 * 50 * SLOW.per_byte + SLOW.overhead)
    assert seconds(burst) == pytest.approx([SLOW.latency + SLOW.overhead] * 8, rel=1e-2)
    assert sum(seconds(burst)) < sum(seconds(burst / 16)) < sum(seconds(0.0))


@pytest.mark.parametrize("lanes", [2, 3, 5])
@pytest.mark.parametrize("turn", [0.0, 300.0, 5000.0])
def test_ranks_at_one_port_are_through_in_turn(lanes, turn):
    """Each lane sends 1200 B to the other node; nothing else costs anything."""
    on = filled(
        2,
        lanes,
        inside=FREE,
        between=replace(FREE, per_byte=1e-9),
        nic=Nic(per_node=1, per_byte=1e-9, turn=turn),
    )
    two = node_lanes(on.everyone)
    assert two is not None
    schedule = two.pull
    payload = Payload(codec=CODECS["coo"], sizes=lambda: np.full(schedule.blocks, 1200.0))
    wire = payload.wire(np.array([0]), np.array([1]), 1)[0]
    end = play(schedule, payload, on, on.everyone, np.zeros(on.size)).end
    after = (lanes - 1 - np.arange(on.size) % lanes) * min(turn, wire)
    np.testing.assert_allclose(end, (lanes * wire - after) * 1e-9, rtol=1e-9)
