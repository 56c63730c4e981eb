"""The union of nodes: in pieces, from lists to lists, on any machine, as its formula says."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cost.price import price
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import METHODS
from commsched.machine.model import Group
from commsched.methods.node_union import method as node_union
from commsched.methods.node_union import routes as node_routes
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from commsched.schedule.check import check
from tests.support.gradients import SUPPORTS, bits, gradients, group, rounded, spec
from tests.test_sparse_methods import sent, wire_only

UNION = METHODS["node-union"]
UNEVEN = Group(ranks=(0, 1, 2, 3), nodes=(0, 0, 0, 1))
SCATTERED = Group(ranks=(0, 1, 2, 3, 4, 5), nodes=(0, 1, 0, 2, 2, 1))
GROUPS = [group(1, 1), group(1, 3), group(3, 1), group(2, 2), group(3, 2), UNEVEN, SCATTERED]


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(node_union, "PIECE", 16)  # B


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("members", GROUPS, ids=lambda g: str(g.nodes))
def test_pieces_sum_like_numpy_on_any_machine(members, kind):
    for numel in (1, 15, 700):
        grads = gradients(kind, members.size, numel)
        states = fresh_states([g.copy() for g in grads])
        run_method(UNION, spec(numel), members, states)
        for state in states:
            np.testing.assert_array_equal(state["result"], np.sum(grads, axis=0))


@pytest.mark.usefixtures("small_pieces")
def test_there_are_several_pieces_and_all_ranks_end_with_equal_bits():
    between = UNION.phases(spec(4000), group(2, 2))[1]
    assert between.schedule.blocks == 2 * 2 * node_union.MOST
    states = fresh_states(rounded(6, 4000))
    run_method(UNION, spec(4000), SCATTERED, states)
    for state in states[1:]:
        np.testing.assert_array_equal(bits(state["result"]), bits(states[0]["result"]))


@pytest.mark.parametrize("members", GROUPS, ids=lambda g: str(g.nodes))
def test_a_list_stands_for_a_gradient(members):
    grads = gradients("skewed", members.size, 90)
    states = fresh_states([np.empty(0, np.float32) for _ in grads])
    for state, gradient in zip(states, grads, strict=True):
        index = np.flatnonzero(gradient).astype(np.int32)
        state["list"] = index, gradient[index]
    run_method(UNION, spec(90), members, states)
    total = np.sum(grads, axis=0)
    for state in states:
        index, values = state["list"]
        np.testing.assert_array_equal(index, np.flatnonzero(total))
        np.testing.assert_array_equal(values, total[index])


@pytest.mark.parametrize("members", [group(2, 1), group(5, 1), group(7, 1)], ids=str)
@pytest.mark.parametrize("count", [1, 4])
def test_pieces_reach_everyone(members, count):
    schedule = node_routes.gathered(members.members, count)
    owner = np.tile(np.arange(members.size), count)
    check(replace(schedule, owner=owner))


@pytest.mark.parametrize("members", [group(2, 3), group(3, 2), group(1, 4)], ids=str)
def test_pieces_reach_every_lane_of_every_node(members):
    nodes, lanes, count = len(members.members), len(members.members[0]), 3
    # With a lag, a rank has received more than it passes on.
    schedule = node_routes.gathered(members.members, count, lag=0)
    owner = np.array(members.members).T[:, np.newaxis].repeat(count, axis=1)
    assert schedule.blocks == lanes * count * nodes
    check(replace(schedule, owner=owner.ravel()))


POWERS = [group(4, 1), group(4, 2), group(4, 3), group(8, 2)]


@pytest.mark.by_day(8)
@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("members", POWERS, ids=lambda g: str(g.nodes))
def test_where_unions_overlap_nodes_double_and_sum_like_numpy(members, kind):
    assert len(UNION.phases(spec(700, 0.5), members)) == 1
    for numel in (1, 15, 700):
        grads = gradients(kind, members.size, numel)
        states = fresh_states([g.copy() for g in grads])
        run_method(UNION, spec(numel, 0.5), members, states)
        for state in states:
            np.testing.assert_array_equal(state["result"], np.sum(grads, axis=0))


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("members", POWERS, ids=lambda g: str(g.nodes))
def test_doubling_nodes_end_with_equal_bits(members):
    states = fresh_states(rounded(members.size, 700))
    run_method(UNION, spec(700, 0.5), members, states)
    for state in states[1:]:
        np.testing.assert_array_equal(bits(state["result"]), bits(states[0]["result"]))


@pytest.mark.parametrize(("count", "lanes"), [(1, 1), (1, 2), (1, 3)])
def test_doubling_reaches_everyone(count, lanes):
    check(node_routes.doubled(group(4, lanes).members, count))


@pytest.mark.parametrize("density", [0.03, 0.3, 0.9])
def test_bytes_of_doubling_are_priced_in_expectation(density):
    numel, members = 40000, group(4, 2)
    on, law = replace(wire_only(1), node_of_rank=members.nodes), spec(numel, density)
    law_of_all = law.pieces[0][0]
    found = []
    for draw in range(8):
        grads = np.zeros((members.size, numel), np.float32)
        for rank, values in enumerate(grads):
            values[law_of_all.support(numel, np.random.default_rng([draw, rank]))] = 1
        found.append(sent(UNION, law, members, fresh_states(list(grads))).mean())
    assert len(UNION.phases(law, members)) == (1 if density > 0.1 else 2)
    assert np.mean(found) == pytest.approx(price(UNION, law, on, on.everyone).sent, rel=2e-3)


def test_each_node_receives_the_union_of_each_other_node_once():
    numel, nodes, lanes, density = 2**20, 4, 2, 0.01
    on = replace(wire_only(1), node_of_rank=group(nodes, lanes).nodes)
    spread = BucketSpec.uniform(numel, density)
    between = UNION.phases(spread, on.everyone)[1]
    one_lane = between.payload.packets / nodes / lanes
    union = (1 - (1 - density) ** lanes) * numel / lanes
    # Two bits more than log2 of the gap; the floor of the logarithm costs up to 0.1.
    assert one_lane == pytest.approx(
        union * (3.5 + (2 + np.log2(numel / lanes / union)) / 8), rel=0.02
    )
    whole = price(UNION, spread, on, on.everyone).sent
    phases = [
        union * 8 / lanes * (1 - density / 2) ** -1,  # a rank's own share for its neighbour
        (nodes - 1) * one_lane,
        (1 - (1 - density) ** (nodes * lanes)) * numel / lanes * 8,
    ]
    assert whole == pytest.approx(sum(phases), rel=0.01)


@pytest.mark.parametrize("density", [0.01, 0.1])
def test_rows_of_a_table_cost_their_values_and_hardly_more(density):
    numel, members = 2**18, group(4, 2)
    law = Sparsity(law="zipf", density=density, rows=2**10)
    spread = BucketSpec(((law, numel, 0, numel),))
    on = replace(wire_only(1), node_of_rank=members.nodes)
    found = []
    for draw in range(6):
        grads = np.zeros((members.size, numel), np.float32)
        for rank, values in enumerate(grads):
            values[law.support(numel, np.random.default_rng([draw, rank]))] = rank + 1
        states = fresh_states([g.copy() for g in grads])
        found.append(sent(UNION, spread, members, states).mean())
        for state in states:
            np.testing.assert_array_equal(state["result"], grads.sum(axis=0))
    zero, stop = np.zeros(1, np.int64), np.array([numel])
    sums = [float(spread.nonzeros(zero, stop, k)[0]) for k in (1, 2, 4, 8)]
    # of two lanes, each; between nodes exponents take four bits
    values = 0.5 * (4 * sums[0] + 3.5 * (sums[1] + sums[2]) + 4 * sums[3])
    slack = 5 * np.std(found) / len(found) ** 0.5 / values
    assert len(UNION.phases(spread, members)) == 1
    assert np.mean(found) == pytest.approx(1.01 * values, rel=0.01 + slack)
    priced = price(UNION, spread, on, on.everyone).sent
    assert np.mean(found) == pytest.approx(priced, rel=0.002 + slack)
