"""Pipelines of real nets in one process: stages change nothing, and SAMO is masked dense Adam."""

import re
from dataclasses import replace
from functools import lru_cache
from itertools import product

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.kernels.adam_constants import AdamConstants
from commsched.kernels.pruned import adam, kept_of, largest
from commsched.plan.model import Plan
from commsched.planner.fixed_method import given as planned
from commsched.planner.request import Request
from commsched.run.engine.buckets import Buckets
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.recorder import Recorder
from commsched.run.wire.device import HOST
from commsched.train import early_bird
from commsched.train.assignment import Assignment, Settings
from commsched.train.early_bird import ROUND, distance, warm_up
from commsched.train.forward_backward import ForwardBackward, RecomputingForwardBackward
from commsched.train.layers.layer import as_float16
from commsched.train.optimizers import OPTIMIZERS, LossScale
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of, part_of
from commsched.train.workers.pipeline import PipelineWorker
from commsched.train.workers.samo import SamoWorker, mask_of, start_of
from tests.support import sampling, strict_arrays
from tests.support.pipeline_in_process import Crew, in_rank_order, of_halves
from tests.support.small_plans import machine

BATCH, STEPS = 24, 4 if sampling.whole else 3
SCALED = STEPS + 3  # the scale of a loss falls in the first steps, in some as often as that
CUT = ["mlp:8:3", "cnn:2", "words:4:50", "gpt:8:1:2"]
WORKERS = {"gpipe": PipelineWorker, "1f1b": PipelineWorker, "samo": SamoWorker}


@lru_cache(maxsize=32)
def graph(net: str, batch: int, half: bool):
    return profile_net(NETS[net], batch, half=half)


def settings(strategy: str, half: bool = False) -> Settings:
    half = half or strategy == "samo"
    return Settings(optimizer="adam", rate=0.01, batch=BATCH, half=half)


def plan_of(
    net: str, strategy: str, stages: int, replicas: int = 1, half: bool = False, **params
) -> Plan:
    """Small buckets, so that some hold several tensors."""
    params = {"stages": stages, "microbatches": 2, **params}
    batch = BATCH // (replicas * params["microbatches"])
    half = half or strategy == "samo"
    request = Request(
        net=graph(net, batch, half),
        machine=machine(1, stages * replicas),
        strategy=strategy,
        params=params,
        bucket=1000.0,
    )
    return planned(request, "ring+fp16" if strategy == "samo" else "ring+dense")


def crew(net: str, plan: Plan, half: bool = False, seed: int = 0, module=np) -> Crew:
    worker, wanted = WORKERS[plan.strategy], settings(plan.strategy, half)
    data, size = DATA[NETS[net].data](0), plan.machine.size
    ranks = [
        worker(Assignment(NETS[net], data, plan, wanted, rank, module)) for rank in range(size)
    ]
    return Crew(plan, ranks, of_halves if plan.strategy == "samo" else in_rank_order, seed)


def batches(net: str, step: int, replica: int, replicas: int, count: int):
    """The microbatches of one replica."""
    train = DATA[NETS[net].data](0).train
    mine = batch_of(0, step, BATCH, len(train))[part_of(BATCH, replica, replicas)]
    return [train.of(mine[part_of(len(mine), m, count)]) for m in range(count)]


def walked(net: str, parameters, some, weight: float, half: bool = False, cut: int = 0, code=None):
    """The summed loss of a microbatch, and its gradients; `code` loses values at layer `cut`."""
    walk = ForwardBackward(NETS[net], parameters, as_float16(some.inputs) if half else some.inputs)
    places = range(len(NETS[net].layers))
    for index in places:
        walk.values = code(walk.values) if code and index == cut else walk.values
        walk.forward(index)
    loss, found = walk.score(some.targets, weight / some.targets.size).loss, {}
    for index in reversed(places):
        found |= walk.backward(index)
        walk.above = code(walk.above) if code and index == cut else walk.above
    return loss, found


def alone(net: str, replicas: int, count: int, last_first: bool, cut: int = 0, code=None):
    """Losses and parameters of one process that adds up the same microbatches; see `walked`."""
    values, adam_ = NETS[net].start(0), OPTIMIZERS["adam"]
    kept = {n: {word: np.zeros_like(v) for word in adam_.words} for n, v in values.items()}
    losses = []
    for step in range(STEPS):
        loss, parts = 0.0, []
        for replica in range(replicas):
            every = batches(net, step, replica, replicas, count)
            done = [walked(net, values, some, 1.0 / count, cut=cut, code=code) for some in every]
            loss += sum(one for one, _ in done) / sum(some.targets.size for some in every)
            order = done[::-1] if last_first else done
            parts.append({n: in_rank_order([found[n] for _, found in order]) for n in values})
        for n, own in values.items():
            mean = in_rank_order([part[n] for part in parts]) / np.float32(replicas)
            adam_.update(own, mean, kept[n], step, 0.01)
        losses.append(loss / replicas)
    return losses, values


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


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


def masked_dense(net: str, plan: Plan, replicas: int, count: int, until: int = STEPS):
    """Every element is kept; what is masked is set to zero after every step.

    A step is left out where a replica has a value from which on the sum may not be a half.
    """
    source = DATA[NETS[net].data](0)
    values, scale, steps = start_of(NETS[net], source, plan, settings("samo")), LossScale(), 0
    masks = {}
    for n, own in values.items():
        index = mask_of(plan, 0, n, own)
        masks[n] = np.ones(own.size, bool) if index is None else np.isin(np.arange(own.size), index)
        masks[n] = masks[n].reshape(own.shape)
        own[~masks[n]] = 0
    mean, square = ({n: np.zeros_like(v) for n, v in values.items()} for _ in range(2))
    for step in range(until):
        halves, parts = {n: v.astype(np.float16) for n, v in values.items()}, []
        for replica in range(replicas):
            every = batches(net, step, replica, replicas, count)
            done = [walked(net, halves, some, scale.value / count, True)[1] for some in every]
            with np.errstate(over="ignore", invalid="ignore"):
                parts.append({n: in_rank_order([found[n] for found in done]) for n in values})
        sums = [part[n][masks[n]] for part in parts for n in values]
        fine = all((np.abs(values) < 65504 / replicas).all() for values in sums)
        divisor = scale.value
        scale.after(not fine)
        if not fine:
            continue
        steps += 1
        for n, own in values.items():
            with np.errstate(over="ignore", invalid="ignore"):  # of what the mask drops
                total = in_rank_order([part[n] for part in parts])
            gradient = np.where(masks[n], total, np.float16(0)).astype(np.float32)
            gradient /= np.float32(replicas)
            adam(gradient, own, mean[n], square[n], steps, divisor, AdamConstants(rate=0.01))
            own[~masks[n]] = 0
    return values, steps


PRUNED = [
    {"pruned": 0.75},
    {"pruned": 0.5, "mask": "random", "whole": 20},
    {"pruned": 0.8, "mask": "early-bird", "warmup": 5},
    {"pruned": 0.0},
]


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("params", "net"), sampling.some([*product(PRUNED, ["mlp:8:3", "gpt:8:1:2"])], 4)
)
def test_samo_on_ranks_is_masked_dense_mixed_precision_adam_bit_for_bit(net, params):
    for stages, replicas in ((1, 1), (2, 3)):
        count = 4 if replicas == 1 else 2
        plan = plan_of(net, "samo", stages, replicas, microbatches=count, **params)
        found = crew(net, plan).train(range(SCALED))
        values, counted = masked_dense(net, plan, replicas, count, SCALED)
        assert_same(found.values, values)
        assert 0 < counted == found.overflows.count(False)


@pytest.mark.parametrize("pruned", [0.25, 0.9])
def test_live_bytes_of_a_rank_are_24_f_phi_and_2_phi(pruned):
    """The worker's arrays, the bucket that the sum comes in, and as many halves on the wire."""
    net = "mlp:32:3"
    for stages in (1, 2):
        plan = plan_of(net, "samo", stages, 2, pruned=pruned)
        for rank, own in enumerate(crew(net, plan).ranks):
            phi = sum(state.half.size for state in own.states.values())
            kept = sum(state.values.size for state in own.states.values())
            live = sum(state.nbytes for state in own.states.values())
            given = DeviceQueue(HOST, Recorder(rank))
            buckets = [state["gradient"] for state in Buckets(plan, rank, own.roles, given).states]
            live += sum(4 * len(bucket) + 2 * len(bucket) for bucket in buckets)
            assert live == 24 * kept + 2 * phi
            # Each tensor keeps a whole number of elements, at least one.
            tensors = len(own.states)
            assert kept == pytest.approx((1 - pruned) * phi, abs=tensors)


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


def test_random_masks_are_those_of_the_seed_and_magnitudes_those_of_the_start():
    values = NETS["mlp:8:3"].start(0)["hidden1.weight"]
    kept = kept_of(values.size, 0.25)
    plans = [plan_of("mlp:8:3", "samo", 1, pruned=0.75, mask=m) for m in ("magnitude", "random")]
    largest, drawn = (mask_of(plan, 3, "hidden1.weight", values) for plan in plans)
    size = np.abs(values.reshape(-1))
    assert len(largest) == len(drawn) == kept
    assert size[largest].min() >= np.delete(size, largest).max()
    np.testing.assert_array_equal(drawn, mask_of(plans[1], 3, "hidden1.weight", values))
    assert set(drawn) != set(mask_of(plans[1], 4, "hidden1.weight", values))


def test_an_early_bird_is_drawn_when_its_masks_stay_the_same():
    """The share that differs falls while the net learns; then the warm-up ends by itself."""
    net, train = NETS["mlp:8:3"], DATA["digits"](0).train
    kept = {name: kept_of(values.size, 0.25) for name, values in net.start(0).items()}

    def masks(most: int):
        values = warm_up(net, train, kept, 32, 0.002, 0, most)
        return {n: largest(values[n].reshape(-1), count) for n, count in kept.items()}

    looks = {most: masks(most) for most in (ROUND, 10 * ROUND, 250, 300)}
    assert distance(looks[250], looks[300]) == 0
    assert distance(looks[ROUND], looks[300]) > 0.2
    assert distance(looks[10 * ROUND], looks[300]) < distance(looks[ROUND], looks[300])
    values = warm_up(net, train, kept, 32, 0.002, 0, 300)
    early_bird.warmed.cache_clear()
    assert_same(warm_up(net, train, kept, 32, 0.002, 0, 300), values)
    halves = {"a": np.array([0, 1, 5, 6]), "b": np.array([3])}
    assert distance(halves, {"a": np.array([0, 2, 5, 7]), "b": np.array([3])}) == 0.4


def test_a_checkpoint_of_other_masks_is_refused():
    kept, then = (
        crew("mlp:8:3", plan_of("mlp:8:3", "samo", 1, mask=mask)).ranks[0]
        for mask in ("magnitude", "random")
    )
    with pytest.raises(CommschedError, match="holds other masks than this training"):
        then.restore(*kept.state(), 2)


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
