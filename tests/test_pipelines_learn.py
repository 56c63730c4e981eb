"""Pipelines of real nets in one process: stages change nothing."""

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.train.assignment import Assignment
from commsched.train.forward_backward import ForwardBackward, RecomputingForwardBackward
from commsched.train.registry import DATA, NETS
from tests.support import sampling, strict_arrays
from tests.support.learning_pipelines import (
    CUT,
    STEPS,
    WORKERS,
    alone,
    assert_same,
    crew,
    plan_of,
    settings,
)


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("net", "strategy"), sampling.some([*product(CUT, ["gpipe", "1f1b"])], 4))
def test_a_pipeline_learns_bit_for_bit_what_one_process_does_with_its_microbatches(net, strategy):
    for stages, replicas, count in ((1, 1, 4), (2, 1, 4), (2, 2, 2), (1, 2, 2)):
        plan = plan_of(net, strategy, stages, replicas, microbatches=count)
        found = crew(net, plan).train(range(STEPS))
        losses, values = alone(net, replicas, count, strategy == "gpipe")
        assert_same(found.values, values)
        assert found.losses == pytest.approx(losses, rel=1e-12)  # sums in another order


LEARNED = [*product(["mlp:8:3", "cnn:2", "gpt:8:1:2"], WORKERS)]


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("net", "strategy"), sampling.some(LEARNED, 4))
def test_how_many_stages_there_are_and_what_comes_first_changes_no_bit(net, strategy):
    for replicas in (1, 2):
        found = [
            crew(net, plan_of(net, strategy, stages, replicas), seed=stages).train(range(STEPS))
            for stages in (1, 2, 4)
        ]
        for other in found[1:]:
            assert_same(other.values, found[0].values)
            assert other.losses == found[0].losses


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("net", "strategy"), sampling.some(LEARNED, 4))
def test_activations_that_are_computed_again_change_no_bit(net, strategy):
    for stages, segments in ((1, 1), (1, 3), (2, 2), (2, 99)):
        kept, again = (
            crew(net, plan_of(net, strategy, stages, 2, recompute=count)).train(range(STEPS))
            for count in (0, segments)
        )
        assert_same(again.values, kept.values)
        assert again.losses == kept.losses


def test_a_walk_keeps_the_inputs_of_segments_and_one_segment_on_its_way_back():
    net, some = NETS["mlp:8:3"], DATA["digits"](0).train.of(np.arange(6))
    places, starts = range(len(net.layers)), (0, 2)
    plain = ForwardBackward(net, net.start(0), some.inputs)
    again = RecomputingForwardBackward(net, net.start(0), some.inputs, starts)
    for walk in (plain, again):
        for index in places:
            walk.forward(index)
        walk.score(some.targets, 1.0)
    assert [array.shape for array in again._inputs.values()] == [(6, 64), (6, 8)]
    assert not again._kept
    for index in reversed(places):
        assert_same(again.backward(index), plain.backward(index))
        assert set(again._kept) == set(range(2 if index >= 2 else 0, index))
    assert not again._inputs


def test_gpipe_and_1f1b_differ_by_the_order_of_their_sums_alone():
    """Of two microbatches the order does not matter; of four it is rounding, 6e-8 each time."""
    for count, rel in ((2, 0.0), (4, 1e-5)):
        found = [
            crew("mlp:8:3", plan_of("mlp:8:3", s, 2, microbatches=count)).train(range(STEPS))
            for s in ("gpipe", "1f1b")
        ]
        assert found[1].losses == pytest.approx(found[0].losses, rel=rel)
        if count == 2:
            assert_same(found[1].values, found[0].values)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("strategy", ["gpipe", "samo"])
def test_a_step_that_overflows_on_one_rank_is_left_out_on_all(strategy):
    plan = plan_of("mlp:8:3", strategy, 2, 2, half=True)
    found = crew("mlp:8:3", plan, half=True)
    for each in found.ranks:
        each.scale.value = 2.0**24  # halves end at 65504
    before = {name: values.copy() for name, values in found.values.items()}
    found.train(range(1))
    assert_same(found.values, before)
    assert found.overflows == [True]
    assert [(each.skipped, each.scale.value) for each in found.ranks] == [(1, 2.0**23)] * 4
    found.train(range(1, 24))
    assert 1 < found.ranks[0].skipped < 24
    assert len({(each.skipped, each.scale.value) for each in found.ranks}) == 1
    assert found.losses[-1] < found.losses[0]


def test_a_sum_that_could_overflow_on_its_way_counts_as_one():
    """From 65504 / D on: the sum of D such values may be beyond the largest half."""
    plan = plan_of("mlp:8:3", "samo", 1, 2, pruned=0.0)
    for value, out in ((32736.0, False), (32752.0, True), (np.inf, True), (np.nan, True)):
        each = crew("mlp:8:3", plan).ranks[1]
        next(iter(each.states.values())).packed[0] = value
        each._end_step(0)
        assert each.vote(0) == out, value


@pytest.mark.parametrize("strategy", WORKERS)
def test_a_sum_and_a_mean_give_the_same_updates(strategy):
    """With two replicas halving is exact, but for the least halves."""
    found = []
    for mean in (True, False):
        plan = replace(plan_of("mlp:8:3", strategy, 2, 2), mean=mean)
        found.append(crew("mlp:8:3", plan).train(range(STEPS)))
    assert found[1].losses == pytest.approx(found[0].losses, rel=0 if strategy != "samo" else 1e-4)


@pytest.mark.parametrize("strategy", ["1f1b", "samo"])
def test_a_stage_trains_where_its_arrays_lie(strategy):
    found = []
    for module in (np, strict_arrays):
        plan = plan_of("mlp:8:3", strategy, 2, 2)
        found.append(crew("mlp:8:3", plan, module=module).train(range(2)).losses)
    # In 16 bits other modules round products themselves; here their sums are float32.
    assert found[1] == pytest.approx(found[0], rel=1e-3 if strategy == "samo" else 0)


@pytest.mark.parametrize("strategy", ["1f1b", "samo"])
def test_what_a_stage_keeps_goes_on_to_the_same_bits(strategy):
    plan = plan_of("mlp:8:3", strategy, 2, 2)
    whole, first, then = (crew("mlp:8:3", plan) for _ in range(3))
    whole.train(range(STEPS))
    first.train(range(STEPS // 2))
    for old, new in zip(first.ranks, then.ranks, strict=True):
        new.restore(*old.state(), STEPS // 2)
    then.scores, then.overflows = first.scores, first.overflows
    assert_same(then.train(range(STEPS // 2, STEPS)).values, whole.values)
    assert then.losses == whole.losses
    tensors, scalars = first.ranks[0].state()
    with pytest.raises(CommschedError, match="holds other tensors than this net"):
        then.ranks[1].restore(tensors, scalars, 2)
    with pytest.raises(CommschedError, match="holds other numbers than this training"):
        then.ranks[0].restore(tensors, {}, 2)


@pytest.mark.parametrize(
    ("net", "strategy", "changes", "message"),
    [
        ("gpt:8:1:2:tied", "1f1b", {}, "reads tensor 'embedding.bytes.weight' of another stage"),
        ("mlp:8:3", "1f1b", {"batch": 18}, "by 4 microbatches, so it must be a multiple of 4"),
        ("mlp:8:3", "1f1b", {"batch": 48}, "have 192 B, but activations are 12 x 8 float32 there"),
        ("mlp:8:3", "1f1b", {"half": True}, "are 6 x 8 float16 there, 96 B; plan what"),
        ("mlp:8:3", "samo", {"optimizer": "sgd"}, "updates with adam, got --optimizer sgd"),
    ],
)
def test_what_stages_cannot_learn_is_refused(net, strategy, changes, message):
    plan = plan_of(net, strategy, 2, 2)
    wanted, source = replace(settings(strategy), **changes), DATA[NETS[net].data](0)
    rank = int(net.endswith("tied"))  # of the first or the second stage
    with pytest.raises(CommschedError, match=re.escape(message)):
        WORKERS[strategy](Assignment(NETS[net], source, plan, wanted, rank))


@pytest.mark.parametrize("strategy", ["1f1b", "samo"])
def test_a_plan_for_another_net_is_refused(strategy):
    plan = plan_of("mlp:8:3", strategy, 1)
    for other in ("mlp:8:2", "mlp:4:3"):
        with pytest.raises(CommschedError, match=f"is for net 'mlp:8:3', not for '{other}'"):
            WORKERS[strategy](
                Assignment(NETS[other], DATA["digits"](0), plan, settings(strategy), 0)
            )
