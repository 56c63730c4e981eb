"""SAMO in one process: masked dense mixed-precision Adam, its memory and its masks."""

from itertools import product

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.kernels.pruned import AdamConstants, adam, kept_of, largest
from commsched.plan.model import Plan
from commsched.run.engine.buckets import Buckets
from commsched.run.engine.device_queue import DeviceQueue
from commsched.run.engine.recorder import Recorder
from commsched.run.wire.device import HOST
from commsched.train import early_bird
from commsched.train.early_bird import ROUND, distance, warm_up
from commsched.train.optimizers import LossScale
from commsched.train.registry import DATA, NETS
from commsched.train.workers.samo import mask_of, start_of
from tests.support import sampling
from tests.support.learning_pipelines import (
    SCALED,
    STEPS,
    assert_same,
    batches,
    crew,
    plan_of,
    settings,
    walked,
)
from tests.support.pipeline_in_process import in_rank_order
from tests.test_pruned import nbytes


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
            live = sum(nbytes(state) for state in own.states.values())
            given = DeviceQueue(HOST, Recorder(rank))
            buckets = [state["gradient"] for state in Buckets(plan, rank, own.roles, given).states]
            live += sum(4 * len(bucket) + 2 * len(bucket) for bucket in buckets)
            assert live == 24 * kept + 2 * phi
            # Each tensor keeps a whole number of elements, at least one.
            tensors = len(own.states)
            assert kept == pytest.approx((1 - pruned) * phi, abs=tensors)


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
    """The share that differs falls while the net learns; then the warm-up ends on its own."""
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
    beats: list[None] = []
    early_bird.warmed.cache_clear()
    warm_up(net, train, kept, 32, 0.002, 0, ROUND, lambda: beats.append(None))
    assert len(beats) == ROUND
    warm_up(net, train, kept, 32, 0.002, 0, ROUND)  # by another rank of this process
    assert early_bird.warmed.cache_info().hits == 1
    halves = {"a": np.array([0, 1, 5, 6]), "b": np.array([3])}
    assert distance(halves, {"a": np.array([0, 2, 5, 7]), "b": np.array([3])}) == 0.4


def test_a_checkpoint_of_other_masks_is_refused():
    kept, then = (
        crew("mlp:8:3", plan_of("mlp:8:3", "samo", 1, mask=mask)).ranks[0]
        for mask in ("magnitude", "random")
    )
    with pytest.raises(CommschedError, match="holds other masks than this training"):
        then.restore(*kept.state(), 2)
