"""A 3-D step on very many ranks: its memory grows with the turns and messages, not operations."""

import tracemalloc

import numpy as np

from commsched.lab.bench.simulator import grid_plan
from commsched.simulate.engine import simulate

RANKS = 16_384
KEPT = 40e3  # B for each rank: 8 B of some 30 moments of its stage, over a step and its tables


def test_a_step_of_a_grid_keeps_times_of_turns_and_not_of_operations():
    plan = grid_plan(RANKS)
    tracemalloc.start()
    found = simulate(plan, 1)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    sources = {id(p.source) for p in found.placed}
    assert len(sources) < len(found.placed) / 20
    assert np.isfinite(found.end)
    assert most < KEPT * RANKS
