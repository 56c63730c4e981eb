"""Machines of many levels: what messages cost, and the schedules that follow them."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.cost.pattern import Places
from commsched.exchange.registry import legal_methods
from commsched.machine.level import Level, SlowChild, port_rates
from commsched.machine.model import Machine, Nic
from commsched.net.bucket import BucketSpec
from commsched.schedule.check import check
from commsched.schedule.nesting import tree_order
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Round
from tests.support.exchanges import FAST, ROUTES, SLOW, filled, played
from tests.support.trees import FOUR, STEP, TORUS, TREES, tree
from tests.test_price import LOGARITHMIC, both

# --- Prices. ---


@given(
    name=st.sampled_from(ROUTES), nodes=st.integers(1, 4), lanes=st.integers(1, 4), data=st.data()
)
def test_a_tree_of_two_levels_costs_what_its_nodes_cost(name, nodes, lanes, data):
    nic = data.draw(st.sampled_from([None, Nic(per_node=2, per_byte=2e-10)]))
    slow = {0: replace(SLOW, per_byte=5e-10)} if data.draw(st.booleans()) else {}
    on = filled(nodes, lanes, nic=nic, overrides=slow, burst=data.draw(st.sampled_from([0, 1e-4])))
    levels = (
        Level(name="node", children=lanes, link=FAST),
        Level(name="fabric", children=nodes, link=SLOW),
    )
    got, want = played(name, replace(on, levels=levels), 3000), played(name, on, 3000)
    np.testing.assert_allclose(got.end, want.end, rtol=1e-12)


@pytest.mark.parametrize("slow", [(), (0,), (0, 1)])
def test_a_measured_link_counts_in_a_tree_where_it_counts_between_nodes(slow):
    curve = replace(SLOW, points=((0.0, 5e-6), (1e4, 8e-6)))
    on = filled(2, 2, between=curve, overrides=dict.fromkeys(slow, SLOW))
    levels = (
        Level(name="node", children=2, link=FAST),
        Level(name="fabric", children=2, link=curve),
    )
    got, want = played("ring", replace(on, levels=levels), 3000), played("ring", on, 3000)
    np.testing.assert_allclose(got.end, want.end, rtol=1e-12)


def wire_of(on: Machine, *moves: tuple[int, int]) -> list[tuple[float, float]]:
    """L + o and s/B of each move of a round."""
    src, dst = np.array(moves).T
    run = np.zeros(len(src), np.int64)
    wire = Places(on, on.everyone).pattern(Round(src, dst, run, run + 1, False, 1)).wire
    rate = np.maximum(wire.per_byte, wire.shared)
    pairs = np.broadcast_arrays(np.zeros(len(src)), wire.away, rate)
    return [(float(away), float(per_byte)) for _, away, per_byte in zip(*pairs, strict=True)]


def test_a_message_pays_the_lowest_level_that_joins_its_ends():
    found = wire_of(FOUR, (0, 1), (2, 0), (4, 2), (8, 4))
    assert found == [(link.latency + link.overhead, link.per_byte) for link in STEP]


def test_messages_share_every_port_that_they_pass():
    """Two racks of two nodes of 10 GB/s each; a rack's ports carry 10 GB/s together."""
    crossing = [(0, 8), (4, 12)]  # from both nodes of a rack to the other
    assert [rate for _, rate in wire_of(FOUR, *crossing)] == pytest.approx([2e-10, 2e-10])
    assert wire_of(FOUR, crossing[0])[0][1] == pytest.approx(1e-10)
    one_node = [(0, 8), (1, 9), (2, 10)]
    assert [rate for _, rate in wire_of(FOUR, *one_node)] == pytest.approx([3e-10] * 3)


def test_a_single_slow_rack_slows_what_enters_or_leaves_it():
    slow = replace(FOUR.levels[3], overrides=(slow_child(0, 9e-10),))
    on = replace(tree(2, 2, 2, 3), levels=(*FOUR.levels[:3], replace(slow, children=3)))
    assert [rate for _, rate in wire_of(on, (0, 8), (8, 16), (16, 1))] == pytest.approx(
        [9e-10, 1e-10, 9e-10]
    )


@pytest.mark.parametrize("ports", [1, 2])
def test_ranks_share_the_ports_of_a_slow_rack_as_those_of_a_slow_node(ports):
    """Two units of two ranks each: nodes, or racks of nodes with a rank."""
    nic, slow = Nic(per_node=ports, per_byte=1e-10), slow_child(1, 9e-10)
    top = Level(name="fabric", children=2, link=STEP[3], nic=nic, overrides=(slow,))
    racks = (
        Level(name="node", children=1, link=STEP[1]),
        Level(name="rack", children=2, link=STEP[2]),
        top,
    )
    nodes = Level(name="node", children=2, link=STEP[1]), top
    of_racks = filled(4, 1, inside=STEP[1], between=STEP[2], levels=racks)
    of_nodes = filled(2, 2, between=STEP[3], nic=nic, overrides={1: slow.link}, levels=nodes)
    crossing = [(2, 0), (3, 1)]
    assert wire_of(of_racks, *crossing) == pytest.approx(wire_of(of_nodes, *crossing))


def test_a_slow_node_stays_slow_between_two_slow_racks():
    far = replace(STEP[2], latency=1e-3)
    racks = replace(FOUR.levels[3], overrides=(slow_child(0, 5e-10), slow_child(1, 5e-10)))
    on = replace(FOUR, overrides={0: far}, levels=(*FOUR.levels[:3], racks))
    away = [seconds for seconds, _ in wire_of(on, (0, 8), (4, 8))]
    assert away == pytest.approx([far.latency + far.overhead, STEP[3].latency + STEP[3].overhead])


def slow_child(child: int, per_byte: float) -> SlowChild:
    return SlowChild(child=child, link=replace(STEP[3], per_byte=per_byte))


def test_rails_keep_equal_lanes_on_one_switch():
    """Two nodes of 2 ranks; lane k hangs on switch k, and the spine joins the switches."""
    levels = (
        Level(name="node", children=2, link=STEP[1]),
        Level(name="rail", children=2, link=STEP[2], rails=2),
        Level(name="spine", children=1, link=STEP[3], oversubscription=2.0),
    )
    on = filled(2, 2, inside=STEP[1], between=STEP[2], levels=levels)
    same, other = wire_of(on, (0, 2), (1, 2))
    assert same == (STEP[2].latency + STEP[2].overhead, 1e-10)
    # Half of the rate of the two ranks on a switch leaves it for the spine: that of one rank.
    assert other == (STEP[3].latency + STEP[3].overhead, 1e-10)
    assert [rate for _, rate in wire_of(on, (1, 2), (3, 0))] == pytest.approx([2e-10, 2e-10])


def test_a_level_without_ports_hands_those_of_its_nodes_on():
    """Four nodes of a rack have a port each; half of what the eight of a row carry leaves it."""
    on = tree(2, 4, 2, 2, names=("node", "rack", "row", "fabric")).levels
    neutral, absent = (
        port_rates((*on[:2], replace(on[2], oversubscription=times), on[3])) for times in (1.0, 0.0)
    )
    assert neutral[3] == pytest.approx(2.0 * 1e-10 / 8)
    assert absent == [*neutral[:2], 0.0, neutral[3]]


def test_a_torus_costs_its_hops_and_its_busiest_link():
    level = Level(name="slice", children=12, link=STEP[0], torus=(4, 3))
    on = filled(1, 12, inside=STEP[0], between=STEP[0], levels=(level,))
    away = [(hops * STEP[0].latency + STEP[0].overhead) for hops in (1, 1, 2, 1, 3)]
    each = [wire_of(on, move)[0] for move in ((0, 1), (0, 3), (0, 2), (0, 8), (0, 6))]
    assert [one for one, _ in each] == pytest.approx(away)
    assert {rate for _, rate in each} == {STEP[0].per_byte}
    # 0 > 2 goes by the link from 1 to 2, or by 3; the shorter way from 0 is ahead.
    assert [rate for _, rate in wire_of(on, (0, 2), (1, 2))] == pytest.approx([2e-11, 2e-11])


def test_each_hop_in_a_torus_pays_the_link_of_its_slower_end():
    """A circle of 8 chips; the links of chip 1 are ten times as slow as the others."""
    link, slow = STEP[0], replace(STEP[0], latency=1e-5, per_byte=1e-10)
    level = Level(name="slice", children=8, link=link, torus=(8,))
    level = replace(level, overrides=(SlowChild(child=1, link=slow),))
    on = filled(1, 8, inside=link, between=link, levels=(level,))
    [to, through, past] = [wire_of(on, move)[0] for move in ((6, 1), (0, 2), (5, 7))]
    assert to == pytest.approx((2 * link.latency + slow.latency + slow.overhead, slow.per_byte))
    assert through == pytest.approx((2 * slow.latency + slow.overhead, slow.per_byte))
    assert past == pytest.approx((2 * link.latency + link.overhead, link.per_byte))
    # Two messages share the link from 0 to 1, and two that from 4 to 5.
    rates = [rate for _, rate in wire_of(on, (7, 1), (0, 1), (3, 5), (4, 5))]
    assert rates == pytest.approx([2 * slow.per_byte] * 2 + [2 * link.per_byte] * 2)


@pytest.mark.parametrize("torus", [(), (1,)])
def test_a_message_between_switches_of_one_child_of_a_torus_pays_its_link(torus):
    levels = (
        Level(name="node", children=2, link=STEP[1]),
        Level(name="rail", children=2, link=STEP[2], rails=2),
        Level(name="spine", children=1, link=STEP[3], torus=torus),
    )
    on = filled(2, 2, inside=STEP[1], between=STEP[2], levels=levels)
    assert wire_of(on, (1, 2)) == [(STEP[3].latency + STEP[3].overhead, STEP[3].per_byte)]


def test_a_torus_of_racks_keeps_the_ports_of_their_nodes():
    """Two ranks of a node send to the next rack at the rate of its one port."""
    fast = replace(STEP[3], per_byte=1e-11)
    racks = replace(FOUR.levels[3], link=fast, oversubscription=0.0)
    rates = []
    for torus in ((), (2,)):
        on = replace(FOUR, levels=(*FOUR.levels[:3], replace(racks, torus=torus)))
        rates.append([rate for _, rate in wire_of(on, (0, 8), (1, 9))])
    assert rates[0] == pytest.approx([2e-10, 2e-10])
    assert rates[1] == pytest.approx(rates[0])


# --- Schedules. ---


@pytest.mark.parametrize("on", TREES, ids=lambda on: "x".join(str(x.children) for x in on.levels))
@pytest.mark.parametrize("name", ROUTES)
def test_every_collective_is_proved_on_trees(name, on):
    check(COLLECTIVES[name](on.everyone))


@given(name=st.sampled_from(ROUTES), data=st.data())
def test_every_collective_is_proved_for_some_ranks_of_a_tree(name, data):
    on = data.draw(st.sampled_from(TREES))
    some = data.draw(st.sets(st.integers(0, on.size - 1), min_size=1))
    group = on.group(sorted(some))
    if name != "all-to-all-rails" or len({len(members) for members in group.members}) == 1:
        check(COLLECTIVES[name](group))


def test_the_hierarchical_one_has_a_ring_per_level():
    rounds = list(COLLECTIVES["hierarchical"](tree(4, 3, 2, 5).everyone).rounds())
    assert len(rounds) == 2 * (3 + 2 + 1 + 4)
    assert len(list(COLLECTIVES["torus"](TORUS.everyone).rounds())) == 2 * (2 + 1 + 1 + 1)
    spans = [len(np.unique(r.src // 24 != r.dst // 24)) for r in rounds[:6]]
    assert spans == [1] * 6  # nothing leaves a rack before its sums are complete


def test_rings_follow_a_torus_to_neighbours():
    on = replace(TORUS, node_of_rank=(0,) * 12)
    found = wire_of(on, *pairwise([*tree_order(on.everyone).tolist()]))
    assert {away for away, _ in found} == {STEP[0].latency + STEP[0].overhead}


def test_a_rail_aligned_all_to_all_stays_on_its_rails():
    group = tree(2, 4, 3).everyone
    for rnd in COLLECTIVES["all-to-all-rails"](group).rounds():
        out = rnd.src // 8 != rnd.dst // 8
        assert (rnd.src[out] % 8 == rnd.dst[out] % 8).all()


# --- Closed forms. ---


@pytest.mark.parametrize("on", TREES, ids=lambda on: "x".join(str(x.children) for x in on.levels))
@pytest.mark.parametrize("name", ROUTES)
def test_a_closed_form_is_near_what_is_played_on_trees(name, on):
    for numel in (10**3, 10**7):
        cost, end = both(name, on, BucketSpec.uniform(numel))
        low, high = (0.85, 10.0) if name in LOGARITHMIC else (0.85, 1.15)
        assert low <= cost.seconds / end.end.max() <= high


@given(children=st.tuples(st.integers(2, 4), *[st.integers(1, 4)] * 3), numel=st.integers(0, 60))
def test_rings_of_all_levels_cost_what_the_textbook_says(children, numel):
    """While a port is free again before the links further in have brought their first bytes."""
    on = tree(*children)
    cost, end = both("hierarchical", on, BucketSpec.uniform(numel * on.size))
    assert cost.seconds == pytest.approx(end.end.max(), rel=1e-9)


def test_planners_try_a_torus_where_there_is_one():
    assert "torus" in {m.name.partition("+")[0] for m in legal_methods(TORUS.everyone)}
    assert "torus" not in {m.name.partition("+")[0] for m in legal_methods(FOUR.everyone)}
