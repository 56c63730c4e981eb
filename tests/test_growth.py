"""The work and the memory of a simulated step grow no faster than ranks x log ranks."""

import gc
import sys
import tracemalloc
from math import log2

import pytest

from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, strategy_plan

RANKS = 256, 2048


def spent(strategy: str, params: dict[str, int], ranks: int) -> tuple[int, int]:
    """Return the calls of functions of a simulation and its timeline, and the most B it keeps."""
    net = graph([3000, 40000] * 2, rows=8)
    plan = strategy_plan(net, machine(ranks // 8, 8, jitter=0.05), strategy, **params)
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    simulate(plan, 2).timeline()  # what a plan keeps of its prices is not counted
    gc.collect()
    tracemalloc.start()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        simulate(plan, 2).timeline()
    finally:
        sys.setprofile(before)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return calls[0], most


@pytest.mark.parametrize(
    ("strategy", "params"),
    [
        ("sync", {}),
        ("zero3", {}),
        ("daso", {"warmup": 0, "cooldown": 0, "batches": 1000}),
        ("local", {}),
        ("1f1b", {"stages": 2}),
        ("samo", {}),
    ],
)
def test_a_simulated_step_grows_no_faster_than_ranks_times_their_logarithm(strategy, params):
    few, many = (spent(strategy, params, ranks) for ranks in RANKS)
    fewer, more = (ranks * log2(ranks) for ranks in RANKS)
    for small, large in zip(few, many, strict=True):
        assert large <= small * more / fewer
