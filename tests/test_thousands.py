"""Every strategy on a thousand ranks and more, which compute for different times in each step."""

import numpy as np
import pytest

from commsched.plan.model import Plan
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.simulate.report import report
from tests.support import sampling
from tests.support.pipeline_plans import net
from tests.support.small_plans import graph, machine, mixture, strategy_plan

NODES, LANES, JITTER = 256 if sampling.whole else 128, 8, 0.3
SIZES = [3000, 40000, 200, 25000]
AVERAGING = {
    "sync": {},
    "daso": {"warmup": 0, "cooldown": 0, "batches": 1000, "gs": 4, "wait": 1},
    "shadow": {"every": 1, "lag": 1},
    **{name: {} for name in ("zero1", "zero2", "zero3")},
}
STAGES = {"stages": 8, "pipeline": 8, "microbatches": 4}
OTHERS = {"samo": {"pruned": 0.9}, "local": {"variant": "overlapping", "microbatches": 1}}


def made(name: str) -> Plan:
    """The strategy's plan on all ranks."""
    on = machine(NODES, LANES, JITTER)
    if name in AVERAGING:
        return strategy_plan(graph(SIZES), on, name, **AVERAGING[name])
    if name == "expert":
        return strategy_plan(mixture(graph([3000, 40008, 200, 25008])), on, name, expert=4)
    known = STRATEGIES[name].parameters
    params = {key: value for key, value in STAGES.items() if key in known}
    return strategy_plan(net(8), on, name, **{**params, **OTHERS.get(name, {})})


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", STRATEGIES)
def test_ranks_and_steps_differ_by_the_jitter_and_all_is_reported(name):
    found = simulate(made(name), 3)
    forward: dict[str, dict[int, np.ndarray]] = {}
    for placed in found.placed:
        if placed.op.name.startswith("forward"):
            forward.setdefault(placed.op.name, {})[placed.step] = placed.end - placed.start
    steps = next(iter(forward.values()))
    assert abs(np.log(steps[0]).std() / JITTER - 1) < 5 / np.sqrt(2 * len(steps[0]))
    assert (steps[0] != steps[1]).all()
    told = report(found)
    assert told["memory_bytes"]["total"] > 0
    assert told["exposed_median_seconds"] + told["hidden_median_seconds"] > 0
    if not {"stages", "pipeline"} & set(STRATEGIES[name].parameters):
        assert told["bubble_median_seconds"] is None
    else:
        assert told["bubble_median_seconds"] >= 0
    assert told["ranks"] == NODES * LANES
