"""SAMO and local training: memory, bytes and periods against their closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.strategies.samo import packing_traffic, state_memory
from commsched.timeline.measure import iteration_seconds
from tests.support import sampling
from tests.support.pipeline_plans import (
    BACKWARD,
    FORWARD,
    FREE,
    free,
    makespan,
    net,
    staged,
    without_launches,
)
from tests.support.small_plans import machine

# --- SAMO. ---


def test_the_state_of_a_pruned_net_takes_24_f_phi_and_2_phi():
    phi = 10**6
    for pruned, saved in ((0.8, 0.66), (0.9, 0.78)):
        share = 1 - pruned
        exact = 24 * share * phi + 2 * phi
        assert state_memory(share * phi, phi, share).total == pytest.approx(exact, rel=1e-12)
        assert 1 - exact / (20 * phi) == pytest.approx(saved, abs=0.005)
    assert state_memory(phi, phi, 1.0).total == 20 * phi
    assert state_memory(0.75 * phi, phi, 0.75).total == pytest.approx(20 * phi)  # break-even


@pytest.mark.parametrize("pruned", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_plan_counts_the_state_of_its_largest_stage(pruned, stages):
    layers = net(4, elements=10_000)
    made = staged("samo", stages, 4 // stages, layers=layers, pruned=pruned, microbatches=3)
    memory = STRATEGIES["samo"].memory(made)
    phi = 40_000 / stages
    want = 20 * phi if not pruned else 24 * (1 - pruned) * phi + 2 * phi
    assert memory.total - memory.activations == pytest.approx(want, rel=1e-12)
    assert memory.activations == min(3, stages) * 4000 * 4 / stages


def test_replicas_sum_f_phi_halves_and_nothing_else():
    """Bytes of a rank: 2 (D - 1) / D * 2 f phi / K."""
    layers = net(4, elements=8000)
    force = {f"l{i}.weight": "ring+fp16" for i in range(4)}
    request = Request(
        net=layers,
        machine=machine(2, 4),
        strategy="samo",
        params={"stages": 2, "pruned": 0.9},
        force=force,
    )
    made = make_plan(request)
    sent = np.zeros(8)
    for p in simulate(made, 1).placed:
        if p.op.kind is Kind.EXCHANGE:
            sent[p.ranks] += p.sent
    np.testing.assert_allclose(sent, 2 * 3 / 4 * 2 * 0.1 * 32_000 / 2, rtol=1e-12)


def test_as_few_stages_as_the_memory_allows_are_planned_and_pruning_needs_fewer():
    layers = net(8, elements=10**6)

    def stages(memory, pruned):
        params = {"pruned": pruned, "microbatches": 8}
        request = Request(
            net=layers, machine=machine(1, 8), strategy="samo", params=params, memory=memory
        )
        return make_plan(request).params["stages"]

    assert [stages(45e6, pruned) for pruned in (0.0, 0.5, 0.9)] == [4, 4, 1]
    assert [stages(memory, 0.9) for memory in (40e6, 20e6, 10e6)] == [1, 2, 4]


@settings(max_examples=sampling.examples(20))
@given(stages=st.integers(1, 5), m=st.integers(1, 10), pruned=st.sampled_from([0.0, 0.9]))
def test_a_message_driven_pipeline_keeps_its_limit_and_takes_as_long_as_1f1b(stages, m, pruned):
    on = free(machine(1, stages))
    made = without_launches(staged("samo", stages, on=on, microbatches=m, pruned=pruned))
    found = {p.op.name: p for p in simulate(made, 1).placed}
    for k in range(stages):
        events = [(found[f"forward/s{k}/m{i}"].start[0], 1) for i in range(m)]
        events += [(found[f"backward/s{k}/m{i}"].end[0] - 1e-9, -1) for i in range(m)]
        assert np.cumsum([change for _, change in sorted(events)]).max() <= stages
    turns = (m + stages - 1) * (FORWARD + BACKWARD)
    assert makespan(made) == pytest.approx(turns, rel=1e-9)


def test_the_bubble_is_that_of_the_paper():
    """(t_f + t_b)(1 - 1 / G_inter), and half of it with twice the replicas of a shallower grid."""
    made = without_launches(staged("samo", 4, on=free(machine(1, 4)), microbatches=9))
    whole = 4 * (FORWARD + BACKWARD)
    assert makespan(made) - 9 * (FORWARD + BACKWARD) == pytest.approx(whole * (1 - 1 / 4))


def test_packing_is_paid_with_every_microbatch():
    on = free(machine(1, 2))
    layers = net(2, elements=10**6)
    bare, pruned = (
        staged("samo", 2, on=on, layers=layers, pruned=p, microbatches=5) for p in (0.0, 0.9)
    )
    seconds = packing_traffic(10**5, 10**6, 0.1) / on.device.bandwidth
    assert seconds == pytest.approx((0.8e6 + 2e6 * (1 - 0.9**16)) / 1e11)
    work = [
        sum(
            op.seconds
            for op in STRATEGIES["samo"].lower(p, 0, {}).roles[0].ops
            if not op.launch + 1
        )
        for p in (bare, pruned)
    ]
    assert work[1] - work[0] == pytest.approx(5 * seconds, rel=1e-9)


# --- Local training. ---


def period(made: Plan, steps: int = 12) -> float:
    """Seconds per batch once the pipeline is full: of the slowest rank."""
    return float(iteration_seconds(simulate(made, steps).timeline())[-3])


@settings(max_examples=sampling.examples(20))
@given(seconds=st.lists(st.integers(1, 9), min_size=2, max_size=5), m=st.integers(1, 3))
def test_greedy_streams_at_the_pace_of_its_slowest_stage(seconds, m):
    layers = net(len(seconds))
    cut = zip(layers.layers, seconds, strict=True)
    unequal = (replace(a, forward=s * 1e-3, backward=2e-3 * s) for a, s in cut)
    layers = replace(layers, layers=tuple(unequal))
    on = free(machine(1, len(seconds)))
    made = without_launches(
        staged("local", len(seconds), layers=layers, on=on, microbatches=m, head=0.5)
    )
    head = 0.5 * 3e-3 * seconds[-1]
    slowest = max([3e-3 * s + head for s in seconds[:-1]] + [3e-3 * seconds[-1]])
    assert period(made) == pytest.approx(m * slowest, rel=1e-9)


def test_there_is_a_fill_and_no_drain():
    made = without_launches(staged("local", 4, on=free(machine(1, 4)), head=0.0))
    fill, batches = 3 * FORWARD, 6
    assert makespan(made, batches) == pytest.approx(fill + batches * (FORWARD + BACKWARD))


@settings(max_examples=sampling.examples(20))
@given(stages=st.integers(2, 5), head=st.sampled_from([0.0, 1.0]), cost=st.integers(0, 2))
def test_the_period_of_overlapping_contains_the_round_trip_to_the_neighbour(stages, head, cost):
    link = replace(FREE, latency=cost * 1e-3, per_byte=cost * 1e-7)
    on = replace(machine(1, stages), inside=link)
    made = without_launches(staged("local", stages, on=on, variant="overlapping", head=head))
    message = cost * 1e-3 + 4000 * cost * 1e-7
    aux = [head * (FORWARD + BACKWARD)] * (stages - 1) + [0.0]
    trips = [2 * FORWARD + 2 * message + aux[k + 1] + 2 * BACKWARD for k in range(stages - 1)]
    own = [FORWARD + aux[k] + 2 * BACKWARD for k in range(stages - 1)]
    assert period(made, 16) == pytest.approx(max(trips + own), rel=1e-9)


@settings(max_examples=sampling.examples(20))
@given(chunks=st.integers(1, 3), run=st.integers(1, 3), m=st.integers(1, 4))
def test_chunks_are_pipelines_that_stream(chunks, run, m):
    stages = chunks * run
    params = {"variant": "chunked", "chunks": chunks, "head": 0.0, "microbatches": m}
    made = without_launches(staged("local", stages, on=free(machine(1, stages)), **params))
    assert period(made, 10) == pytest.approx((m + run - 1) * (FORWARD + BACKWARD), rel=1e-9)


@settings(max_examples=sampling.examples(20))
@given(stages=st.integers(1, 4), m=st.integers(1, 5))
def test_one_chunk_is_1f1b(stages, m):
    on = machine(1, stages)
    params = {"variant": "chunked", "chunks": 1, "microbatches": m}
    one = staged("local", stages, on=on, **params)
    other = staged("1f1b", stages, on=on, microbatches=m)
    assert makespan(one, 2) == pytest.approx(makespan(other, 2), rel=1e-12)


def test_heads_have_parameters_and_gradients_of_their_own():
    made = staged("local", 3, 2, head=0.5)
    assert [layer.name for layer in made.net.layers][3:] == ["head@s0", "head@s1"]
    assert made.net.numel == 3 * 100 + 2 * 50
    pieces = [[piece.tensor for piece in launch.pieces] for launch in made.launches]
    assert pieces == [
        ["head@s0.l2.weight", "l0.weight"],
        ["head@s1.l2.weight", "l1.weight"],
        ["l2.weight"],
    ]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"variant": "chunked"}, "variant 'chunked' has a number of chunks; got chunks = 0"),
        ({"chunks": 2}, "variant 'greedy' has none: every stage is a block; got chunks = 2"),
        ({"variant": "chunked", "chunks": 4}, "4 chunks cannot be made of 3 stages; allowed: 1 to"),
        ({"variant": "overlapping", "microbatches": 2}, "microbatches must be 1, got 2"),
        ({"variant": "lazy"}, "variant cannot be 'lazy'; allowed: greedy, overlapping, chunked"),
    ],
    ids=str,
)
def test_what_local_training_cannot_mean_is_refused(params, message):
    with pytest.raises(CommschedError, match=message):
        staged("local", 3, **params)
