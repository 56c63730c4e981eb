"""Ranks that share experts learn what one process learns, with the same routes and drops."""

from functools import cache

import numpy as np
import pytest

from commsched.planner.fixed_method import given
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.layers.mixture import route
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.workers.expert import ExpertWorker
from tests.support.small_plans import machine
from tests.test_train import started

NET, BATCH, STEPS = "moe:8:4:2:2", 8, 3


@cache
def profiled(samples):
    return profile_net(NETS[NET], samples)


@cache
def learned(expert, ranks, send="dense", mean=True):
    """The parameters after some steps, and each step's tokens by expert, sample for sample."""
    net = NETS[NET]
    plan = make_plan(
        Request(
            net=profiled(BATCH // ranks),
            machine=machine(1, ranks),
            strategy="expert",
            params={"expert": expert, "send": send},
            mean=mean,
            bucket=2000.0,
        )
    )
    settings = Settings(optimizer="momentum", rate=0.1, batch=BATCH)
    training = InProcessTraining(net, DATA[net.data](0), plan, settings, ExpertWorker)
    for step in range(STEPS):
        training.step(step)
    for learner in training.learners:
        learner.settle()
    found: dict[str, np.ndarray] = {}
    for first in range(0, ranks, expert):
        team = training.learners[first : first + expert]
        for name, start in net.tensors.items():
            own = [each.values[name] for each in team]
            cut = start.cut if start.cut and start.cut.experts else None
            whole = cut.joined(own) if cut else own[0]
            assert np.array_equal(found.setdefault(name, whole), whole)  # on all replicas
    return found, training


@pytest.mark.by_day(1)
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize(("expert", "ranks"), [(2, 2), (4, 4), (2, 4), (1, 2), (4, 8)])
def test_parameters_are_those_of_one_process_but_for_the_order_of_additions(expert, ranks, mean):
    one, _ = learned(1, 1)
    many, _ = learned(expert, ranks, mean=mean)
    assert one.keys() == many.keys()
    for name, values in one.items():
        np.testing.assert_allclose(many[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_coded_tokens_are_fewer_bytes_and_nearly_the_same_parameters():
    whole, plain = learned(4, 4)
    half, coded = learned(4, 4, "bf16")
    assert coded.sent < plain.sent
    for name, values in whole.items():
        assert np.abs(half[name] - values).max() < 0.02, name


def test_a_sample_is_routed_as_it_is_alone():
    """So that no partition of a batch changes what is dropped."""
    chances = np.random.default_rng(0).random((6, 20, 4))
    whole = route(chances, 2, 7)
    assert whole.counts.tolist() == np.bincount(whole.expert, minlength=4).tolist()
    assert whole.counts.max() <= 6 * 7
    pairs = sorted(zip(whole.token.tolist(), whole.expert.tolist(), strict=True))
    alone = [route(chances[i : i + 1], 2, 7) for i in range(6)]
    apart = [
        (20 * i + token, expert)
        for i, each in enumerate(alone)
        for token, expert in zip(each.token.tolist(), each.expert.tolist(), strict=True)
    ]
    assert pairs == sorted(apart)
    assert len(pairs) < 6 * 20 * 2  # some are dropped


def test_first_choices_come_before_second_ones():
    chances = np.array([[[0.6, 0.4], [0.4, 0.6], [0.45, 0.55]]])
    found = route(chances, 2, 2)
    taken = sorted(zip(found.expert.tolist(), found.token.tolist(), strict=True))
    assert taken == [(0, 0), (0, 1), (1, 1), (1, 2)]


def test_a_profile_measures_the_load():
    net = profile_net(NETS["moe:8:4:2:1"], 4)
    (experts,) = net.experts_of.values()
    assert (experts.tokens, experts.groups, experts.slots) == (4 * 64, 4, 4 * 20)
    assert max(experts.load) <= experts.slots / experts.tokens
    assert len(set(experts.load)) > 1
    missing = 256 * (1 - sum(experts.load))
    assert experts.dropped == pytest.approx(missing, abs=1)
    assert missing > 0


def test_a_fixed_method_sums_gradients_beside_the_routes_of_tokens():
    request = Request(
        net=profiled(2), machine=machine(1, 4), strategy="expert", params={"expert": 4}
    )
    made, found = make_plan(request), given(request, "all-gather+topk:0.05")
    assert found.params == made.params
    assert [x.name for x in found.launches] == [x.name for x in made.launches]
    for before, now in zip(made.launches, found.launches, strict=True):
        summed = now.payload == "gradient" and found.group(now).size > 1
        assert now.method == ("all-gather+topk:0.05" if summed else before.method)
    assert {x.purpose for x in found.launches} == {"dispatch", "combine", ""}


def test_experts_that_do_not_divide_are_refused():
    words = ("--net", "moe:8:4:2:1", "--batch", "6", "--steps", "1", "--strategy", "expert")
    found = started(3, *words, "--param", "expert=3")
    assert found.status == 2
    assert "cannot be shared by 3 ranks; nearest: expert=1" in found.output
