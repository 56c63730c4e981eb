"""Whole trainings with the CUDA kernels, run on this processor: the parameters of NumPy."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.planner.fixed_method import given as planned
from commsched.planner.request import Request
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.job import TRAINED
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from tests.cuda_on_cpu import cpu
from tests.support.small_plans import machine

pytestmark = cpu.MARKS
NET, BATCH, STEPS = "mlp:8:2", 12, 3
CASES = {
    "sync": ["all-gather+topk:0.05:sampled", "all-gather+quant:8", "ring+fp16", "ring+bf16"],
    "samo": ["ring+fp16"],
    "gpipe": ["ring+bf16"],
}


def learned(strategy: str, method: str) -> dict[str, np.ndarray]:
    """The parameters of all ranks after some steps."""
    stages = {} if strategy == "sync" else {"stages": 2, "microbatches": 2}
    graph = profile_net(NETS[NET], BATCH // (4 if stages else 2), half=strategy == "samo")
    # No two ways to cut it are equally good, whatever was measured.
    layers = [
        replace(layer, forward=2.0**-14 + i * 2.0**-18, backward=2.0**-13)
        for i, layer in enumerate(graph.layers)
    ]
    request = Request(
        net=replace(graph, layers=tuple(layers)),
        machine=machine(1, 4 if stages else 2),
        strategy=strategy,
        params=stages,
        bucket=3000.0,
    )
    settings = Settings(optimizer="adam", rate=0.01, batch=BATCH, half=strategy == "samo")
    plan, data = planned(request, method), DATA[NETS[NET].data](0)
    all_ranks = InProcessTraining(NETS[NET], data, plan, settings, TRAINED[strategy])
    for step in range(STEPS):
        all_ranks.step(step)
    all_ranks.evaluate()
    return {
        f"rank {rank}, {name}": values.copy()
        for rank, learner in enumerate(all_ranks.learners)
        for name, values in learner.values.items()
    }


@pytest.mark.parametrize(
    ("strategy", "method"), [(name, each) for name, methods in CASES.items() for each in methods]
)
def test_a_training_with_the_kernels_learns_the_bits_of_numpy(strategy, method):
    plain = learned(strategy, method)
    with cpu.kernels():
        found = learned(strategy, method)
    assert found.keys() == plain.keys()
    for name, values in plain.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
