"""Tensor-parallel ranks, pipelines and shards learn what one process learns."""

from functools import cache

import numpy as np
import pytest

from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.layers.layer import Cut
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.workers.grid import GridWorker
from tests.support.small_plans import machine
from tests.test_train import started

NET, BATCH, STEPS = "gpt:8:2:2", 8, 3


@cache
def profiled(samples):
    return profile_net(NETS[NET], samples)


@cache
def learned(tensor, pipeline, replicas, zero=0, recompute=0, sequence=0, mean=True, interleave=1):
    """The parameters after some steps, put together from all ranks, and the bytes sent."""
    parts = replicas * 2
    plan = make_plan(
        Request(
            net=profiled(BATCH // parts),
            machine=machine(1, tensor * pipeline * replicas),
            strategy="3d",
            mean=mean,
            params={
                "tensor": tensor,
                "pipeline": pipeline,
                "zero": zero,
                "sequence": sequence,
                "microbatches": 2,
                "interleave": interleave,
                "recompute": recompute,
                "optimizer": "momentum",
            },
            force={} if zero else dict.fromkeys(NETS[NET].tensors, "ring+dense"),
        )
    )
    settings = Settings(optimizer="momentum", rate=0.1, batch=BATCH)
    training = InProcessTraining(NETS[NET], DATA[NETS[NET].data](0), plan, settings, GridWorker)
    for step in range(STEPS):
        training.step(step)
    for learner in training.learners:
        learner.settle()
    found: dict[str, np.ndarray] = {}
    for first in range(0, len(training.learners), tensor):
        team = training.learners[first : first + tensor]
        for name, start in NETS[NET].tensors.items():
            if name in team[0].values:
                own = [each.values[name] for each in team]
                whole = own[0] if start.cut is None else start.cut.joined(own)
                assert np.array_equal(found.setdefault(name, whole), whole)  # on all replicas
    assert found.keys() == NETS[NET].tensors.keys()
    return found, training.sent


@pytest.mark.parametrize("degrees", [(2, 1, 1), (2, 2, 1), (2, 2, 2)])
def test_parameters_are_those_of_one_process_but_for_the_order_of_additions(degrees):
    """A matrix product in two parts rounds otherwise than in one, by 1e-7 of its terms."""
    one, _ = learned(1, 1, 1)
    many, _ = learned(*degrees)
    for name, values in one.items():
        np.testing.assert_allclose(many[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(
    ("degrees", "more"),
    [((2, 1, 1), {}), ((2, 2, 1), {"recompute": 2}), ((2, 2, 2), {"zero": 1}), ((2, 1, 2), {})],
)
def test_ranks_that_share_tokens_learn_what_one_process_learns(degrees, more, mean):
    """Norms and biases see some tokens on each rank: their gradients are summed in parts, too."""
    one, _ = learned(1, 1, 1)
    many, _ = learned(*degrees, **more, sequence=1, mean=mean)
    for name, values in one.items():
        np.testing.assert_allclose(many[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_stages_shards_and_recomputation_change_no_bit():
    """Two numbers have the same sum in any order, and a stage computes what one rank does."""
    wanted, sent = learned(2, 1, 2)
    for pipeline, zero, recompute, chunks in (
        (2, 0, 0, 1),
        (2, 1, 0, 1),
        (1, 1, 2, 1),
        (2, 1, 1, 3),
    ):
        found, others = learned(2, pipeline, 2, zero, recompute, interleave=chunks)
        assert all(np.array_equal(found[name], values) for name, values in wanted.items())
        assert others > sent


def test_stages_change_no_bit_where_ranks_share_tokens():
    wanted, sent = learned(2, 1, 1, sequence=1)
    for chunks in (1, 2):
        found, others = learned(2, 2, 1, recompute=1, sequence=1, interleave=chunks)
        assert all(np.array_equal(found[name], values) for name, values in wanted.items())
        assert others > sent


@pytest.mark.parametrize("cut", [Cut(0, 2), Cut(1, 2), Cut(1, 2, blocks=3)])
def test_parts_of_a_parameter_make_the_whole_one(cut):
    whole = np.arange(4 * 12.0).reshape(4, 12)
    parts = [cut.part(whole, place, 2) for place in range(2)]
    np.testing.assert_array_equal(cut.joined(parts), whole)
    if cut.blocks == 3:  # queries, keys and values of the first head
        assert parts[0][0].tolist() == [0, 1, 4, 5, 8, 9]


def test_tokens_that_do_not_divide_are_refused():
    words = ("--net", "gpt:12:1:3", "--batch", "6", "--steps", "1", "--strategy", "tensor")
    found = started(3, *words, "--param", "tensor=3", "--param", "sequence=1")
    assert found.status == 2
    assert "64 tokens of a sample do not divide among 3 tensor-parallel ranks" in found.output
    assert "nearest: sequence=0" in found.output


def test_a_net_that_cannot_be_cut_is_refused():
    words = ("--net", "mlp:16:1", "--batch", "8", "--steps", "1", "--strategy", "tensor")
    found = started(2, *words, "--param", "tensor=2")
    assert found.status == 2
    assert "has no layers that 2 ranks can share" in found.output
