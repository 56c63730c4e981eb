"""Groups of ranks that exchange at the same time share ports; rings in the order of the ranks."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.cost.pattern import Places
from commsched.cost.price import price
from commsched.cost.shared_ports import alongside
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.machine import file as machines
from commsched.machine.level import SlowChild
from commsched.machine.model import Group, Machine, resized
from commsched.net.bucket import BucketSpec
from commsched.program.model import Kind
from commsched.program.stages import ranks_of
from commsched.schedule.check import check
from commsched.schedule.registry import COLLECTIVES
from commsched.simulate.engine import simulate
from tests.support.pipeline_plans import net, shared_nic, staged
from tests.support.small_plans import machine
from tests.support.trees import tree

PER_BYTE = 8e-9  # s/B of a port


def group(on: Machine, ranks: tuple[int, ...]) -> Group:
    return Group(ranks=ranks, nodes=tuple(on.node_of_rank[r] for r in ranks))


@given(
    nodes=st.integers(2, 5),
    lanes=st.integers(1, 6),
    stages=st.sampled_from([1, 2, 3, 6]),
    near=st.sampled_from(["stages", "replicas"]),
)
def test_a_port_serves_all_its_ranks_at_its_own_rate(nodes, lanes, stages, near):
    lanes *= stages  # so that every node has as many ranks of every stage
    on = shared_nic(machine(nodes, lanes), PER_BYTE)
    for ranks in ranks_of(on.size, stages, near):
        found = alongside(on, group(on, ranks))
        here = np.bincount([on.node_of_rank[r] for r in ranks]).max()
        assert found.nic.per_byte == pytest.approx(PER_BYTE * lanes / here)


def test_nothing_is_shared_without_a_port_or_by_one_group():
    bare, on = machine(2, 4), shared_nic(machine(2, 4), PER_BYTE)
    assert alongside(bare, group(bare, (0, 4))) is bare
    assert alongside(on, on.everyone) is on
    assert alongside(on, group(on, (3,))) is on


def test_the_exchanges_of_two_stages_take_twice_as_long_as_one_by_itself():
    """Both ranks of a node are of different stages; messages of one stage alone have the port."""
    on = shared_nic(machine(4, 2), PER_BYTE)
    layers = net(2, elements=10**6)
    made = staged("1f1b", 2, 4, layers=layers, on=on, microbatches=1)
    made = replace(made, launches=tuple(replace(x, method="ring+dense") for x in made.launches))
    assert len(made.launches) == 2
    spec = BucketSpec.uniform(10**6)
    alone = price(find_method("ring+dense"), spec, on, group(on, (0, 2, 4, 6))).exchange
    for p in simulate(made, 1).placed:
        if p.op.kind is Kind.EXCHANGE:
            assert (p.end - p.start).max() == pytest.approx(2 * alone, rel=0.02)


@pytest.mark.parametrize("library", ["mpich", "nccl"])
@pytest.mark.parametrize("slow", [1, 3, 30])
def test_a_librarys_sum_shares_the_port_of_a_slow_node_with_groups_beside(library, slow):
    on = shared_nic(machine(4, 4), PER_BYTE)
    node = replace(on.between, per_byte=slow * PER_BYTE)
    on = replace(on, library=library, overrides={1: node} if slow > 1 else {})
    team = on.group(range(0, 16, 4))
    sums = find_method("native+dense"), BucketSpec.uniform(10**8)
    beside, alone = (price(*sums, each, team).exchange for each in (alongside(on, team), on))
    assert beside == pytest.approx(4 * alone, rel=0.2)


@given(nodes=st.integers(1, 4), lanes=st.integers(1, 5))
def test_a_ring_by_number_is_the_ring_where_ranks_fill_nodes_in_turn(nodes, lanes):
    on = machine(nodes, lanes).everyone
    ours, usual = COLLECTIVES["ring:ranks"](on), COLLECTIVES["ring"](on)
    check(ours)
    for mine, other in zip(ours.rounds(), usual.rounds(), strict=True):
        for a, b in zip(mine[:6], other[:6], strict=True):
            np.testing.assert_array_equal(a, b)


@given(size=st.integers(1, 24), nodes=st.integers(1, 6))
def test_a_ring_by_number_sums_wherever_ranks_are(size, nodes):
    places = tuple(rank % nodes for rank in range(size))
    check(COLLECTIVES["ring:ranks"](Group(ranks=tuple(range(size)), nodes=places)))


def test_dealt_out_ranks_leave_their_node_with_every_hop():
    summit = resized(machines.load("summit"), 4, 6)
    dealt = replace(summit, node_of_rank=tuple(rank % 4 for rank in range(24)))
    spec = BucketSpec.uniform(10**7)
    seconds = {
        name: price(find_method(f"{name}+dense"), spec, dealt, dealt.everyone).exchange
        for name in ("ring", "ring:nodes", "ring:ranks")
    }
    assert seconds["ring"] == seconds["ring:nodes"]
    shared = 2 * 23 / 24 * 4e7 / (12.5e9 / 6)
    assert seconds["ring:ranks"] == pytest.approx(shared, rel=0.05)
    assert seconds["ring:ranks"] > 5 * seconds["ring"]


def test_an_order_that_does_not_exist_is_refused():
    with pytest.raises(CommschedError, match="order 'size'; allowed: nodes, ranks"):
        COLLECTIVES["ring:size"]


@pytest.mark.parametrize("teams", [2, 4])
@pytest.mark.parametrize("ports", [1, 2])
@pytest.mark.parametrize("slow", [1, 3, 30])
def test_groups_share_the_ports_of_all_levels(teams, ports, slow):
    """Each group's messages take as long as they do in a round with those of all groups."""
    on = tree(2, 2, 2, 4)
    node = replace(on.between, per_byte=slow * on.between.per_byte)
    on = replace(on, nic=replace(on.nic, per_node=ports), overrides={1: node})
    rack = SlowChild(child=1, link=replace(on.levels[3].link, per_byte=node.per_byte))
    racks = (on.levels[3], replace(on.levels[3], nic=on.nic, oversubscription=0.0))
    for top in (replace(level, overrides=(rack,)) for level in racks):
        _share_ports(replace(on, levels=(*on.levels[:3], top)), teams)


def _share_ports(on, teams):
    groups = [on.group(range(first, on.size, teams)) for first in range(teams)]
    for ahead in range(1, groups[0].size):
        ranks = np.arange(on.size)
        whole = Places(on, on.everyone).wire(ranks, (ranks + ahead * teams) % on.size)
        for number, team in enumerate(groups):
            members = np.arange(team.size)
            there = (members + ahead) % team.size
            alone = Places(alongside(on, team), team).wire(members, there)
            np.testing.assert_allclose(alone.shared, whole.shared[number::teams])
