"""The simulator: laws of any timeline, and timelines that can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.cost.closed import closed
from commsched.errors import CommschedError
from commsched.exchange.registry import phases_of
from commsched.program.model import After
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.timeline.measure import exposed, hidden, iteration_seconds
from tests.support.overlaps import overlaps
from tests.support.small_plans import graph, machine, plan

METHODS = ["ring+dense", "doubling+fp16", "direct+bf16", "all-gather+coo", "tree+dense"]
plans = st.builds(
    lambda sizes, nodes, lanes, jitter, bucket, overlap: plan(
        graph(sizes), machine(nodes, lanes, jitter), METHODS, bucket, params={"overlap": overlap}
    ),
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=6),
    nodes=st.integers(1, 3),
    lanes=st.integers(1, 4),
    jitter=st.sampled_from([0.0, 0.1]),
    bucket=st.sampled_from([1.0, 1e6]),
    overlap=st.sampled_from(["forward", "backward"]),
)


@given(made=plans)
def test_no_two_spans_of_a_stream_overlap(made):
    assert overlaps(simulate(made, 3).timeline()) == []


@given(made=plans)
def test_nothing_starts_before_its_inputs(made):
    found = simulate(made, 3)
    ends = {(p.step, p.op.name): p.end for p in found.placed}
    for p in found.placed:
        for name, back in p.op.after:
            if p.step >= back:
                assert (p.start >= ends[p.step - back, name]).all()
        assert (p.end >= p.start).all()


@given(made=plans)
def test_the_makespan_is_at_least_every_load_and_the_critical_path(made):
    found = simulate(made, 3)
    timeline = found.timeline()
    makespan = timeline.end.max()
    load = np.zeros((timeline.ranks, len(timeline.streams)))
    np.add.at(load, (timeline.rank, timeline.stream), timeline.end - timeline.start)
    assert makespan >= load.max() - 1e-12
    assert makespan >= sum(part.seconds for part in found.critical_path) - 1e-12
    assert found.critical_path[-1].seconds <= makespan


@given(made=plans)
def test_what_is_not_exposed_is_hidden(made):
    timeline = simulate(made, 2).timeline()
    busy = timeline.stream == timeline.streams.index("inside")
    busy |= timeline.stream == timeline.streams.index("between")
    total = (timeline.end - timeline.start)[busy].sum()
    found = exposed(timeline).sum() + hidden(timeline).sum()
    assert found == pytest.approx(total, rel=1e-9, abs=1e-12)


@given(made=plans, factor=st.floats(1.0, 3.0))
def test_a_slower_link_never_shortens_a_step_of_equal_ranks(made, factor):
    slow = replace(
        made.machine,
        jitter=0.0,
        inside=replace(made.machine.inside, per_byte=made.machine.inside.per_byte * factor),
    )
    fast = replace(made, machine=replace(made.machine, jitter=0.0))
    before = simulate(fast, 2).timeline().end.max()
    after = simulate(replace(made, machine=slow), 2).timeline().end.max()
    assert after >= before - 1e-12


def test_one_bucket_without_overlap_is_a_sum_of_its_parts():
    made = plan(graph([10**6]), machine(1, 4), ["ring+dense"], params={"overlap": "backward"})
    (phase,) = phases_of(made, 0)
    device, numel = made.machine.device, 10**6
    copy = 2 * 4.0 * numel / device.bandwidth
    exchange = closed(phase.schedule, phase.payload, made.machine, made.machine.everyone).seconds
    apply = 20.0 * numel / device.bandwidth
    gather = 3 * 4.0 * numel / device.bandwidth  # read, written, and looked at for NaN
    want = 1e-3 + 2e-3 + gather + exchange + copy + apply
    found = iteration_seconds(simulate(made, 4).timeline())[:-1]
    np.testing.assert_allclose(found, want, rtol=1e-9)


def test_an_exchange_hides_under_a_long_backward_pass():
    net = graph([10, 10**5], seconds=0.1)
    made = plan(net, machine(1, 4), ["ring+dense"])
    timeline = simulate(made, 3).timeline()
    big = np.array([name == "b0/exchange" for name in timeline.names])[timeline.name]
    small = np.array([name == "b1/exchange" for name in timeline.names])[timeline.name]
    per_step = (timeline.end - timeline.start)[small].reshape(3, -1).max(axis=1)
    assert (timeline.end - timeline.start)[big].min() > 0
    np.testing.assert_allclose(exposed(timeline).max(axis=0), per_step, rtol=1e-9)


def test_the_next_forward_waits_only_for_what_it_reads():
    net = graph([10, 10**6])  # the large gradient is read late in the next forward
    late = simulate(plan(net, machine(), ["ring+dense"], params={"overlap": "forward"}), 4)
    early = simulate(plan(net, machine(), ["ring+dense"], params={"overlap": "backward"}), 4)
    assert late.timeline().end.max() < early.timeline().end.max()
    deps = {op.name: op.after for op in STRATEGIES["sync"].lower(late.plan, 1, {}).roles[0].ops}
    assert deps["b0/apply"] == (After("b0/decode", 1),)


def test_jitter_makes_the_ranks_wait_and_the_seed_repeats_it():
    made = plan(graph([1000] * 4), machine(1, 8, jitter=0.2), ["ring+dense"])
    one, two = simulate(made, 5).timeline(), simulate(made, 5).timeline()
    np.testing.assert_array_equal(one.end, two.end)
    assert one.waited.max() > 0
    calm = simulate(plan(graph([1000] * 4), machine(1, 8), ["ring+dense"]), 5).timeline()
    assert calm.waited.max() == 0
    assert iteration_seconds(one)[1:-1].mean() > iteration_seconds(calm)[1:-1].mean()


def test_a_straggler_delays_everyone():
    made = plan(graph([1000] * 2), machine(1, 4, jitter=0.5), ["doubling+dense"])
    found = simulate(made, 1)
    backward = next(p for p in found.placed if p.op.name == "backward/l0")
    last = next(p for p in found.placed if p.op.name == "b1/exchange")
    assert last.end.min() >= backward.end.max()


def test_memory_counts_everything():
    made = plan(graph([1000, 500]), machine(), ["ring+dense"], params={"optimizer": "adam"})
    memory = simulate(made, 1).memory
    assert memory.parameters == memory.gradients == memory.buckets == 6000
    assert memory.optimizer == 12000
    assert memory.activations == 200
    assert memory.residuals == 0
    assert memory.packets == 4000 * 3 / 4  # of the larger bucket: three rounds of a ring of four
    assert memory.total == 3 * 6000 + 12000 + 200 + 3000


def test_bytes_of_a_ring_are_the_textbook_s():
    made = plan(graph([4000]), machine(1, 8), ["ring+dense"])
    timeline = simulate(made, 1).timeline()
    np.testing.assert_allclose(timeline.nbytes.sum() / 8, 2 * 7 / 8 * 16000)


def test_no_steps_are_refused():
    with pytest.raises(CommschedError, match="steps must be at least 1, got 0"):
        simulate(plan(graph([10]), machine(), ["ring+dense"]), 0)
