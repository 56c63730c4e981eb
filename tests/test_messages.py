"""Messages between roles: matched by construction, and placed in time as they come."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.kernels import random
from commsched.program.draft import Draft, received
from commsched.program.message_coding import MessageCoding
from commsched.program.model import After, Hop, Kind, Op, Role
from commsched.program.registry import STRATEGIES
from commsched.simulate.breakdown import message_makeup
from commsched.simulate.clocks import Clocks
from commsched.simulate.engine import simulate
from commsched.simulate.pipelines import PipelineMessages
from tests.support import sampling
from tests.support.overlaps import overlaps
from tests.support.pipeline_plans import FREE, free, net, shared_nic, staged
from tests.support.small_plans import FAST, SLOW, machine

KINDS = ["gpipe", "1f1b"]


def roles_of(made, step=0):
    return STRATEGIES[made.strategy].lower(made, step, {}).roles


def plain(made: PipelineMessages, factor) -> dict[tuple[int, str], float]:
    """Ends of one pipeline, by looking for the operation that begins first again and again."""
    left = {(r, op.name): op for r, role in enumerate(made.roles) for op in role.ops}
    left = {key: op for key, op in left.items() if op.kind in (Kind.COMPUTE, Kind.SEND)}
    free: dict[tuple[int, str], float] = {}
    ends: dict[tuple[int, str], float] = {}
    while left:
        heads: dict[tuple[int, str, int], str] = {}
        for (r, name), op in left.items():
            heads.setdefault((r, op.stream, op.urgency), name)
        able = []
        for (r, stream, urgency), name in heads.items():
            inputs = [(r, other) for other, back in left[r, name].after if not back]
            if all(key in ends for key in inputs):
                begin = max([free.get((r, stream), 0.0), *(ends[key] for key in inputs)])
                able.append((round(begin, 10), stream != "send", urgency, r, name, begin))
        *_, r, name, begin = min(able)
        op = left.pop((r, name))
        if op.kind is Kind.COMPUTE:
            ends[r, name] = free[r, "compute"] = begin + op.seconds * factor[r]
            continue
        at = made.places[r, name]
        busy, away = made.busy[made.wire[at], 0], made.away[made.wire[at], 0]
        ends[r, name] = free[r, "send"] = begin + busy
        arrived = max(begin + away, free.get((op.peer, "receive"), 0.0)) + busy
        ends[op.peer, op.match] = free[op.peer, "receive"] = arrived
    return ends


pipes = st.builds(
    lambda kind, stages, replicas, m, jitter, near: staged(
        kind,
        stages,
        replicas,
        layers=stages + 1,
        on=machine(1, stages * replicas, jitter),
        microbatches=m,
        near=near,
    ),
    kind=st.sampled_from(KINDS),
    stages=st.integers(1, 4),
    replicas=st.integers(1, 3),
    m=st.integers(1, 6),
    jitter=st.sampled_from([0.0, 0.3]),
    near=st.sampled_from(["stages", "replicas"]),
)


@settings(max_examples=sampling.examples(25))
@given(made=pipes)
def test_every_message_has_two_ends_that_agree(made):
    roles = roles_of(made)
    ends = {op.name: (r, op) for r, role in enumerate(roles) for op in role.ops if op.match}
    assert sum(len(role.ops) for role in roles) == len({o.name for r in roles for o in r.ops})
    for role, op in ends.values():
        peer, other = ends[op.match]
        assert {op.kind, other.kind} == {Kind.SEND, Kind.RECV}
        assert (op.peer, other.peer, op.tag, op.nbytes) == (peer, role, other.tag, other.nbytes)
    tags = Counter((r, op.peer, op.tag) for r, op in ends.values() if op.kind is Kind.SEND)
    assert set(tags.values()) <= {1}


@settings(max_examples=sampling.examples(25))
@given(made=pipes)
def test_no_message_comes_before_it_was_sent(made):
    found = simulate(made, 2)
    by_name = {(p.step, p.op.name): p for p in found.placed}
    link = made.machine.inside
    for p in found.placed:
        if p.op.kind is Kind.RECV:
            sent = by_name[p.step, p.op.match]
            least = link.latency + 2 * link.overhead + p.op.nbytes * link.per_byte
            assert (p.start >= sent.start).all()
            assert (p.end >= sent.start + least - 1e-12).all()


@settings(max_examples=sampling.examples(25))
@given(made=pipes)
def test_all_pipelines_at_once_are_each_pipeline_by_itself(made):
    found = simulate(made, 1)
    ends = {p.op.name: p.end for p in found.placed}
    roles = roles_of(made)
    for column in range(len(roles[0].ranks)):
        ranks = np.array([role.ranks[column] for role in roles])
        factor = random.jitter(made.machine.jitter, made.seed, 0, ranks)
        alone = PipelineMessages(
            made.machine, tuple(replace(r, ranks=r.ranks[column:][:1]) for r in roles)
        )
        for (_, name), end in plain(alone, factor).items():
            assert ends[name][column] == pytest.approx(end, rel=1e-12)


@settings(max_examples=sampling.examples(25))
@given(made=pipes)
def test_few_pipelines_are_placed_one_by_one_with_the_same_bits(made):
    roles = roles_of(made)
    ranks = np.array([role.ranks for role in roles])
    factor = random.jitter(made.machine.jitter, made.seed, 0, ranks.ravel()).reshape(ranks.shape)
    found = []
    for few in (0, ranks.shape[1]):
        together = PipelineMessages(made.machine, roles, few=few)
        clocks = [Clocks(ranks.shape[1]) for _ in roles]
        own, there = together.place(clocks, factor, {})
        ends = [clock.free[stream] for clock in clocks for stream in ("compute", "send", "receive")]
        found.append([own.start, own.end, there.start, there.end, *ends])
    for some, others in zip(*found, strict=True):
        np.testing.assert_array_equal(some, others)


@settings(max_examples=sampling.examples(50))
@given(order=st.permutations(range(6)), times=st.lists(st.integers(1, 9), min_size=6, max_size=6))
def test_what_arrives_first_goes_first_and_the_most_urgent_of_those_that_wait(order, times):
    """One rank gets messages from six others that compute for a time each; three are urgent."""
    draft = Draft([(r,) for r in range(7)], MessageCoding("dense", 4, machine().device))
    for i in order:
        urgency = int(i >= 3)
        name = After(f"c{i}")
        draft.add(1 + i, Op(kind=Kind.COMPUTE, name=f"c{i}", stream="compute", seconds=times[i]))
        hop = Hop(1 + i, 0, 0)
        draft.message(hop, 8, name)
        work = Op(
            kind=Kind.COMPUTE,
            name=f"w{i}",
            stream="compute",
            after=(received(hop),),
            seconds=4.0,
            urgency=urgency,
        )
        draft.add(0, work)
    roles: tuple[Role, ...] = draft.roles
    made = PipelineMessages(free(machine(1, 7)), roles)
    own, _ = made.place([Clocks(1) for _ in range(7)], np.ones((7, 1)), {})
    start = {i: own.start[made.places[0, f"w{i}"], 0] for i in order}
    queues = [[i for i in order if (i >= 3) == late] for late in (False, True)]
    now = 0.0
    while any(queues):
        heads = [queue[0] for queue in queues if queue]
        _, _, chosen = min((max(now, times[i]), i >= 3, i) for i in heads)
        begin = max(now, times[chosen])
        assert start[chosen] == begin
        now = begin + 4.0
        queues[chosen >= 3].remove(chosen)


@pytest.mark.parametrize("startup", [0.0, 3e-4])
def test_a_message_costs_start_up_latency_overheads_and_bytes(startup):
    made = staged("gpipe", 2, on=replace(machine(2, 1), startup=startup), microbatches=1)
    ends = {p.op.name: p for p in simulate(made, 1).placed}
    sent, got = ends["send/s0-s1/m0"], ends["recv/s0-s1/m0"]
    assert sent.start[0] == ends["forward/s0/m0"].end[0]
    assert got.end[0] - sent.start[0] == pytest.approx(startup + 14e-6 + 4000 * 8e-9)
    assert sent.end[0] - sent.start[0] == pytest.approx(2e-6 + 4000 * 8e-9)
    assert (sent.sent, got.sent) == ([4000.0], [0.0])


def test_replicas_on_a_node_share_its_port():
    on = shared_nic(machine(2, 3), SLOW.per_byte)
    made = staged("gpipe", 2, 3, on=on, microbatches=1, near="replicas")
    alone = staged("gpipe", 2, on=shared_nic(machine(2, 1), SLOW.per_byte), microbatches=1)
    lengths = []
    for plan in (made, alone):
        (found,) = [p for p in simulate(plan, 1).placed if p.op.name == "send/s0-s1/m0"]
        lengths.append(found.end[0] - found.start[0] - SLOW.overhead)
    assert lengths[0] == pytest.approx(3 * lengths[1])


def test_messages_of_one_rank_leave_one_after_the_other():
    """A middle stage sends its activation and, from 1F1B's second turn on, a gradient at once."""
    slow = replace(FREE, per_byte=1e-6)
    on = replace(machine(1, 3), inside=slow)
    made = staged("1f1b", 3, on=on, layers=net(3, activation=10_000.0), microbatches=6)
    timeline = simulate(made, 1).timeline()
    assert overlaps(timeline) == []
    assert timeline.end.max() > 6 * (2 * 10e-3)  # the messages' load is more than the compute's


@pytest.mark.by_day(0)
def test_sixteen_thousand_ranks_with_jitter_are_placed():
    made = staged("1f1b", 8, 2048, on=machine(2048, 8, jitter=0.1), microbatches=4)
    found = simulate(made, 1)
    assert sum(len(p.ranks) for p in found.placed if p.op.kind is Kind.COMPUTE) == 2**14 * 8


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_message_is_taken_apart_by_the_link_that_it_takes(nodes):
    slower = replace(SLOW, latency=3 * SLOW.latency)
    on = replace(machine(nodes, 2), overrides={nodes - 1: slower} if nodes > 2 else {})
    op = Op(kind=Kind.RECV, name="m", stream="receive", nbytes=1e6)
    for peer, link in ((1, FAST), (2, SLOW), (2 * nodes - 1, slower if nodes > 2 else SLOW)):
        if peer < on.size:
            found = message_makeup(on, op, 0, peer)
            used = link if on.node_of_rank[peer] else FAST
            latency = used.latency + 2 * used.overhead + on.startup
            assert found.latency == pytest.approx(latency)
            assert found.bandwidth == pytest.approx(1e6 * used.per_byte)
