"""Pipelines of real nets whose ranks learn in one process, and one process that learns alone."""

from functools import lru_cache

import numpy as np

from commsched.plan.model import Plan
from commsched.planner.fixed_method import given as planned
from commsched.planner.request import Request
from commsched.train.assignment import Assignment, Settings
from commsched.train.forward_backward import ForwardBackward
from commsched.train.layers.layer import as_float16
from commsched.train.optimizers import OPTIMIZERS
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.sample_order import batch_of, part_of
from commsched.train.workers.pipeline import PipelineWorker
from commsched.train.workers.samo import SamoWorker
from tests.support import sampling
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
