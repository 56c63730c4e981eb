"""Playing a schedule: against a slow interpreter of the same equations, and the laws of a price."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.cost.chain import messages_in_turn
from commsched.cost.play import play
from commsched.exchange.payload import Payload
from commsched.machine.model import CodecRate, Group, Link, Machine, Nic
from commsched.net.bucket import BucketSpec
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, RoundRows, Schedule
from tests.support.exchanges import DEVICE, ROUTES, SLOW, carry, filled, machine, played

# --- A slow interpreter: one message after the other, in plain Python. ---


def wire_seconds(on: Machine, group: Group, moves: list, ports: list[int]) -> list[tuple]:
    """(L, o, seconds on a port of its own, on the shared one) of each move (src, dst, bytes)."""
    crossing = [(s, d) for s, d, _ in moves if group.nodes[s] != group.nodes[d]]
    found = []
    for src, dst, nbytes in moves:
        ends = [group.nodes[src], group.nodes[dst]]
        if ends[0] == ends[1]:
            alone = float(on.inside.wire(nbytes))
            found.append((on.inside.latency, on.inside.overhead, alone, alone))
            continue
        links = [on.overrides.get(node, on.between) for node in ends]
        seconds = alone = max(float(link.wire(nbytes)) for link in links)
        if on.nic is not None:
            flows = [sum(ports[s] == ports[src] for s, _ in crossing)]
            flows.append(sum(ports[d] == ports[dst] for _, d in crossing))
            for node, flow in zip(ends, flows, strict=True):
                own = on.overrides[node].per_byte if node in on.overrides else 0.0
                seconds = max(seconds, nbytes * max(on.nic.per_byte, own) * flow)
        latency, overhead = max(x.latency for x in links), max(x.overhead for x in links)
        found.append((latency, overhead, alone, seconds))
    return found


def ports_of(on: Machine, group: Group) -> list[int]:
    per_node = on.nic.per_node if on.nic else 1
    found = []
    for rank in group.ranks:
        here = [r for r, node in enumerate(on.node_of_rank) if node == on.node_of_rank[rank]]
        place = here.index(rank) * per_node // len(here)
        found.append(on.node_of_rank[rank] * per_node + place)
    return found


def reference(
    schedule: Schedule, payload: Payload, on: Machine, group: Group, start: np.ndarray
) -> tuple[list[float], list[float], list[int]]:
    rate, ports, p = payload.rate(on.device), ports_of(on, group), group.size
    history = [start.tolist()]  # merged, by rounds
    send_port, receive_port, processor = (start.tolist() for _ in range(3))
    sent, messages = [0.0] * p, [0] * p
    for index, rnd in enumerate(schedule.rounds()):
        data = history[index if rnd.waits is None else rnd.waits]
        merged = list(history[index])
        wire = payload.wire(rnd.first, rnd.stop, rnd.merged).tolist()
        raw = payload.raw(rnd.first, rnd.stop).tolist()
        moves = list(zip(rnd.src.tolist(), rnd.dst.tolist(), wire, strict=True))
        leaves = []
        for (src, _, nbytes), values in zip(moves, raw, strict=True):
            ready = data[src]
            if rate.encode:
                ready = max(ready, processor[src]) + rate.fixed + values * rate.encode
                processor[src] = ready
            leaves.append(max(ready, send_port[src]))
            sent[src] += nbytes
            messages[src] += 1
        seconds = wire_seconds(on, group, moves, ports)
        for (src, dst, nbytes), values, leave, (away, over, alone, busy) in zip(
            moves, raw, leaves, seconds, strict=True
        ):
            send_port[src] = leave + busy + over
            begins = max(leave + over + away, receive_port[dst])
            receive_port[dst] = begins + busy + over
            work = rate.per_add + nbytes * rate.add if rnd.add else 0.0
            if not rnd.add and rate.decode:
                work = rate.per_decode + values * rate.decode
            merged[dst] = max(begins + alone + over, processor[dst]) + work
        for _, dst, _ in moves:
            processor[dst] = merged[dst]
        history.append(merged)
    clocks = send_port, receive_port, history[-1], processor
    end = [max(times) for times in zip(*clocks, strict=True)]
    return end, sent, messages


seconds = st.floats(0.0, 1e-3)
slopes = st.sampled_from([0.0, 1e-9, 3e-8])


@st.composite
def links(draw: st.DrawFn) -> Link:
    points = draw(st.sampled_from([(), ((0.0, 1e-6), (500.0, 2e-6), (4000.0, 9e-5))]))
    return Link(latency=draw(seconds), overhead=draw(seconds), per_byte=draw(slopes), points=points)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Up to 4 nodes of equally many ranks in any order; everything may differ."""
    nodes, lanes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    placed = draw(st.permutations([node for node in range(nodes) for _ in range(lanes)]))
    rate = CodecRate(
        encode=draw(slopes),
        add=draw(slopes),
        decode=draw(slopes),
        fixed=draw(seconds),
        fixed_add=draw(st.none() | seconds),
        fixed_decode=draw(st.none() | seconds),
        encode_sparse=draw(st.sampled_from([1.0, 0.3])),
        decode_dense=draw(st.sampled_from([1.0, 7.0])),
    )
    nics = st.builds(Nic, per_node=st.integers(1, 3), per_byte=slopes)
    return machine(
        tuple(placed),
        inside=draw(links()),
        between=draw(links()),
        nic=draw(st.none() | nics),
        overrides=draw(st.dictionaries(st.integers(0, nodes - 1), links(), max_size=2)),
        device=replace(DEVICE, codecs=dict.fromkeys(CODECS, rate)),
    )


@pytest.mark.parametrize("codec", ["dense", "fp16", "coo"])
@given(name=st.sampled_from(ROUTES), on=machines(), numel=st.integers(0, 3000), data=st.data())
def test_playing_is_following_each_message(codec, name, on, numel, data):
    group = on.everyone
    start = np.array(data.draw(st.lists(seconds, min_size=on.size, max_size=on.size)))
    schedule = COLLECTIVES[name](group)
    payload = carry(schedule, codec, BucketSpec.uniform(numel, 0.05 if codec == "coo" else 1.0))
    got = play(schedule, payload, on, group, start)
    end, sent, messages = reference(schedule, payload, on, group, start)
    np.testing.assert_allclose(got.end, end, rtol=1e-12, atol=0)
    np.testing.assert_allclose(got.sent, sent, rtol=1e-12, atol=0)
    assert got.messages.tolist() == messages
    assert (got.end >= start).all()


@st.composite
def any_rounds(draw: st.DrawFn, ranks: int) -> list[Round]:
    """Rounds that need not reach a goal: any pattern, runs, waits; blocks are the ranks'."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    firsts = [np.tile(rng.permutation(ranks), 2) for _ in range(2)]
    tables = [(first, first + 1) for first in firsts]
    orders = [np.arange(ranks), rng.permutation(ranks)]
    rounds: list[Round] = []
    named = 0
    for index in range(draw(st.integers(1, 8))):
        src = orders[rng.integers(2)]
        dst = np.roll(src, rng.integers(1, ranks)) if rng.integers(2) else rng.permutation(src)
        rows = RoundRows(*tables[rng.integers(2)], int(rng.integers(ranks)))
        if rng.integers(3) == 0:
            some = rng.permutation(ranks) <= rng.integers(ranks)
            src, dst = src[some], dst[some]
        run = rows.first[rows.start : rows.start + len(src)]
        waits = [None, 0, index, named][rng.integers(4)]
        named = index if waits == index else named
        merged = int(rng.integers(1, ranks + 1))
        rounds.append(Round(src, dst, run, run + 1, bool(rng.integers(2)), merged, waits, rows))
    return rounds


@pytest.mark.parametrize("codec", ["dense", "fp16", "coo"])
@given(on=machines().filter(lambda on: on.size > 1), numel=st.integers(0, 3000), data=st.data())
def test_playing_is_following_each_message_of_any_rounds(codec, on, numel, data):
    group, rounds = on.everyone, data.draw(any_rounds(on.size))
    schedule = Schedule(
        name="any", goal=Goal.ALL_REDUCE, ranks=on.size, blocks=on.size, rounds=lambda: iter(rounds)
    )
    start = np.array(data.draw(st.lists(seconds, min_size=on.size, max_size=on.size)))
    payload = carry(schedule, codec, BucketSpec.uniform(numel, 0.05 if codec == "coo" else 1.0))
    got = play(schedule, payload, on, group, start)
    end, sent, messages = reference(schedule, payload, on, group, start)
    np.testing.assert_allclose(got.end, end, rtol=1e-12, atol=0)
    np.testing.assert_allclose(got.sent, sent, rtol=1e-12, atol=0)
    assert got.messages.tolist() == messages


@given(name=st.sampled_from(ROUTES), on=machines(), data=st.data())
def test_a_group_of_some_ranks_is_played_like_all(name, on, data):
    """Which ports are shared depends on where a member sits on the machine, not in the group."""
    some = sorted(data.draw(st.sets(st.integers(0, on.size - 1), min_size=1)))
    group = Group(ranks=tuple(some), nodes=tuple(on.node_of_rank[rank] for rank in some))
    uneven = len({len(members) for members in group.members}) > 1
    if uneven and name in ("all-to-all-rails", "hierarchical"):
        return
    schedule = COLLECTIVES[name](group)
    payload = carry(schedule, "dense", BucketSpec.uniform(1000))
    start = np.zeros(group.size)
    got = play(schedule, payload, on, group, start)
    want = reference(schedule, payload, on, group, start)
    np.testing.assert_allclose(got.end, want[0], rtol=1e-12, atol=0)


# --- Laws. ---


@given(name=st.sampled_from(ROUTES), on=machines(), numel=st.integers(0, 3000))
def test_more_elements_in_every_block_never_cost_less(name, on, numel):
    more = numel + 3 * COLLECTIVES[name](on.everyone).blocks
    ends = [played(name, on, n).end for n in (numel, more)]
    assert (ends[1] >= ends[0] * (1 - 1e-12)).all()


@given(name=st.sampled_from(ROUTES), on=machines(), late=st.integers(0, 15), by=seconds)
def test_a_later_start_never_ends_earlier_nor_later_than_by_as_much(name, on, late, by):
    start = np.zeros(on.size)
    before = played(name, on, 1000, start=start).end
    start[late % on.size] += by
    after = played(name, on, 1000, start=start).end
    assert (after >= before * (1 - 1e-12)).all()
    assert (after <= (before + by) * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", ROUTES)
@pytest.mark.parametrize("numel", [0, 1])
def test_nothing_and_one_element_cost_latency_alone(name, numel):
    on = filled(2, 3)
    got = played(name, on, numel)
    rounds = len(list(COLLECTIVES[name](on.everyone).rounds()))
    most = 2 * rounds * (SLOW.latency + 2 * SLOW.overhead + 1e-9)
    assert (got.end > 0).all()
    assert got.end.max() <= most


@pytest.mark.parametrize("name", ROUTES)
def test_one_rank_ends_when_it_starts(name):
    got = played(name, filled(1, 1), 1000, start=np.array([2.5]))
    assert (got.end[0], got.sent[0], got.messages[0]) == (2.5, 0, 0)


@given(name=st.sampled_from(ROUTES), on=machines(), codec=st.sampled_from(list(CODECS)))
def test_what_all_send_is_what_all_moves_carry(name, on, codec):
    schedule = COLLECTIVES[name](on.everyone)
    payload = carry(schedule, codec, BucketSpec.uniform(1000, 0.02))
    total = sum(payload.wire(r.first, r.stop, r.merged).sum() for r in schedule.rounds())
    moves = sum(len(r.src) for r in schedule.rounds())
    got = play(schedule, payload, on, on.everyone, np.zeros(on.size))
    assert got.sent.sum() == pytest.approx(total, rel=1e-12)
    assert got.messages.sum() == moves


# --- Networks. ---


@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
def test_flows_through_one_nic_take_so_many_times_as_long(lanes):
    """Each of the lanes sends 1200 B to the other node, twice, and nothing else costs anything."""
    free = Link(latency=0.0, overhead=0.0, per_byte=0.0)
    rate = CodecRate(encode=0.0, add=0.0, decode=0.0)
    on = filled(
        2,
        lanes,
        inside=free,
        between=replace(free, per_byte=1e-9),
        nic=Nic(per_node=1, per_byte=1e-9),
        device=replace(DEVICE, codecs={"dense": rate}),
    )
    ends = [played("hierarchical", x, 600 * lanes).end for x in (on, replace(on, nic=None))]
    np.testing.assert_allclose(ends[0], 2 * 1200e-9 * lanes, rtol=1e-12)
    np.testing.assert_allclose(ends[1], 2 * 1200e-9, rtol=1e-12)


@given(
    name=st.sampled_from(ROUTES),
    lanes=st.integers(1, 4),
    nodes=st.integers(2, 4),
    per_node=st.integers(1, 3),
)
def test_no_node_sends_faster_than_its_ports(name, lanes, nodes, per_node):
    nic = Nic(per_node=per_node, per_byte=1e-9)
    on = filled(nodes, lanes, nic=nic)
    got = played(name, on, 10_000)
    schedule = COLLECTIVES[name](on.everyone)
    payload = carry(schedule, "dense", BucketSpec.uniform(10_000))
    node = np.array(on.node_of_rank)
    crossing = np.zeros(nodes)
    for rnd in schedule.rounds():
        out = node[rnd.src] != node[rnd.dst]
        np.add.at(crossing, node[rnd.src][out], payload.wire(rnd.first, rnd.stop, 1)[out])
    assert got.end.max() >= crossing.max() * nic.per_byte / min(per_node, lanes) * (1 - 1e-12)


def test_ranks_with_a_port_each_do_not_wait_for_each_other():
    link = replace(SLOW, per_byte=1e-9)
    own = filled(2, 4, between=link, nic=Nic(per_node=4, per_byte=1e-9))
    alone = filled(2, 4, between=link)
    np.testing.assert_array_equal(played("direct", own, 999).end, played("direct", alone, 999).end)


def test_a_slow_node_slows_those_who_talk_to_it():
    slow = replace(SLOW, per_byte=10 * SLOW.per_byte)
    on = filled(4, 1, overrides={2: slow})
    even = played("all-gather-direct", filled(4, 1), 100_000).end
    got = played("all-gather-direct", on, 100_000).end
    assert (got > even * 2).all()
    one_slow = played("ring", on, 100_000).end.max()
    all_slow = played("ring", filled(4, 1, between=slow), 100_000).end.max()
    assert one_slow == pytest.approx(all_slow, rel=0.05)  # a ring is as fast as its slowest link


def test_the_ranks_of_a_slow_node_share_its_slow_port():
    slow = replace(SLOW, per_byte=10 * SLOW.per_byte)
    nic = Nic(per_node=1, per_byte=SLOW.per_byte)
    shared = filled(2, 4, overrides={1: slow}, nic=nic)
    alone = filled(2, 4, overrides={1: slow}, nic=Nic(per_node=4, per_byte=SLOW.per_byte))
    ends = [played("hierarchical", on, 8_000_000).end.max() for on in (shared, alone)]
    assert ends[0] == pytest.approx(4 * ends[1], rel=0.2)  # inside the nodes it is as before


def test_a_measured_curve_replaces_the_slope():
    curve = ((0.0, 1e-6), (400.0, 5e-6), (4000.0, 6e-6))
    on = filled(2, 1, between=replace(SLOW, points=curve))
    [end] = set(played("all-gather", on, 100).end)  # 400 B
    assert end == pytest.approx(SLOW.latency + 2 * SLOW.overhead + 5e-6, rel=1e-12)


@pytest.mark.parametrize("name", ROUTES)
@given(nodes=st.integers(1, 5), lanes=st.integers(1, 4))
def test_messages_in_turn_are_the_seconds_of_a_wire_that_only_waits(name, nodes, lanes):
    """Where each message takes 1 s and nothing else takes time, an exchange lasts its chain."""
    second = Link(latency=1.0, overhead=0.0, per_byte=0.0)
    on = filled(
        nodes, lanes, inside=second, between=second, device=replace(DEVICE, bandwidth=1e300)
    )
    schedule = COLLECTIVES[name](on.everyone)
    payload = carry(schedule, "dense", BucketSpec.uniform(64))
    lasts = play(schedule, payload, on, on.everyone, np.zeros(on.size)).end.max()
    assert messages_in_turn(schedule, payload, on, on.everyone) == pytest.approx(lasts)
