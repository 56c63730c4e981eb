"""ZeRO on real nets: shards end with the bits of replicas, and checkpoints hold shards only."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.plan import file as plan_file
from commsched.plan.model import Launch, Plan
from commsched.planner.launches import launches
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.train.packing import unpacked
from commsched.train.profile import profile_net
from commsched.train.registry import NETS
from tests.support.small_plans import machine
from tests.test_train import DENSE, started, train

GPT = ("--net", "gpt:16:1:2", "--batch", "16", "--optimizer", "adam")
LEVELS = ["zero1", "zero2", "zero3"]


@pytest.fixture(scope="module")
def replicas() -> str:
    return str(train(2, *GPT, *DENSE, "--steps", "6")["parameters"])


@pytest.mark.by_day(1)
@pytest.mark.parametrize("level", LEVELS)
def test_two_ranks_end_with_the_bits_of_replicas(level, replicas, tmp_path):
    """Two numbers have the same sum in any order: not a bit may differ with two ranks."""
    words = (*GPT, "--strategy", level, "--checkpoint", str(tmp_path), "--every", "2")
    some = train(2, *words, "--evaluate", "3", "--steps", "4")
    assert some["parameters"] != replicas
    assert train(2, *words, "--steps", "6", "--resume")["parameters"] == replicas
    numel = sum(start.shape and np.prod(start.shape) for start in NETS[GPT[1]].tensors.values())
    kept = [unpacked((tmp_path / f"step6/rank{r}.npz").read_bytes(), "it") for r in range(2)]
    sizes = [[sum(a.size for a in s.values()) for s in each["learner"].values()] for each in kept]
    assert sum(map(sum, sizes)) == 3 * numel  # value and both moments of every element, once


def ringed(launch: Launch, sums: str, gathers: str) -> Launch:
    return replace(launch, method=gathers if launch.purpose else sums)


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("shape", "params"), [((1, 4), {}), ((2, 2), {"shard": "node"})])
def test_four_ranks_end_with_the_bits_of_the_ring(shape, params, tmp_path):
    """A reduce-scatter adds in the order of the all-reduce that it is a half of."""
    net, on = profile_net(NETS["mlp:16:2"], 4), machine(*shape)
    request = Request(net=net, machine=on, strategy="zero3", params=params, bucket=1e3)
    plan, ring = make_plan(request), "hierarchical" if params else "ring"
    sums = "shard:hierarchical+dense" if params else "shard:reduce-scatter+dense"
    shards = [ringed(launch, sums, "shard:all-gather+dense") for launch in plan.launches]
    buckets = [[*launch.pieces] for launch in plan.launches if not launch.purpose]
    assert len(buckets) > 1
    replicas = launches(
        replace(request, strategy="sync", params={}),
        buckets,
        lambda launch: replace(launch, method=f"{ring}+dense"),
    )
    ends = []
    for made in (replicas, replace(plan, launches=tuple(shards))):
        ends.append(_trained(made, tmp_path / f"{made.strategy}.json"))
    assert ends[0] == ends[1]


def _trained(plan: Plan, path) -> str:
    plan_file.write(path, plan)
    words = ("--net", "mlp:16:2", "--batch", "16", "--steps", "5", "--plan", str(path))
    return str(train(4, *words, "--strategy", plan.strategy)["parameters"])


@pytest.mark.parametrize("ranks", [1, 3])
def test_any_number_of_ranks_learns_what_one_replica_learns(ranks):
    words = ("--net", "mlp:16:1", "--batch", "24", "--steps", "8", "--precision", "fp16")
    wanted = train(1, *words, *DENSE)
    found = train(ranks, *words, "--strategy", "zero3", "--param", "prefetch=0")
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-3)  # 16 bits
    if ranks == 1:
        assert found["parameters"] == wanted["parameters"]


def test_coded_gathers_learn_from_exact_shards():
    words = ("--net", "mlp:16:1", "--batch", "16", "--steps", "10", "--strategy", "zero3")
    exact = train(2, *words)
    coded = train(2, *words, "--param", "gather=quant:8")
    assert coded["sent_mean_bytes"] < 0.7 * exact["sent_mean_bytes"]
    assert coded["loss"] == pytest.approx(exact["loss"], rel=0.05)
    assert coded["parameters"] != exact["parameters"]


@pytest.mark.by_day(0)
def test_a_net_that_lends_a_tensor_to_a_dropped_unit_is_refused():
    words = ("--net", "gpt:16:1:2:tied", "--batch", "16", "--steps", "2", "--strategy")
    found = started(2, *words, "zero3")
    assert found.status == 2
    assert "of another unit, which strategy 'zero3' drops after that unit" in found.output
    ends = [train(2, *words, *more)["parameters"] for more in (["zero2"], ["sync", *DENSE])]
    assert ends[0] == ends[1]
