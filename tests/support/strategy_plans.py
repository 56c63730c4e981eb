"""A small plan of every strategy for tests."""

from functools import cache

from commsched.plan.model import Param, Plan
from commsched.program.registry import STRATEGIES
from tests.support.small_plans import (
    graph,
    machine,
    mixture,
    shared,
    stage_params,
    strategy_plan,
)

# Small numbers, so that a few steps see everything a strategy does.
PARAMS: dict[str, dict[str, Param]] = {
    "daso": {"batches": 6, "epochs": 3, "warmup": 1, "cooldown": 1, "gs": 4, "wait": 1}
    | {"local_skip": 4},
    "shadow": {"every": 3, "lag": 2},
    "1f1b": {"near": "replicas"},
    "tensor": {"sequence": 1},
    "3d": {"zero": 1, "recompute": 2},
    "local": {"variant": "chunked", "chunks": 1, "messages": "fp8"},
}


@cache
def small(name: str, nodes: int, lanes: int, jitter: float = 0.0) -> Plan:
    """A plan of a strategy; with stages, of two, or of three where they do not divide the ranks."""
    net, on = graph([3000, 40008, 200, 25008]), machine(nodes, lanes, jitter=jitter)
    net = mixture(net, zipf=0.5) if name == "expert" else shared(net, summed=840)
    params = dict(PARAMS.get(name, {}))
    size = on.size // lanes if "tensor" in STRATEGIES[name].parameters else on.size
    params |= {"expert": 2 - on.size % 2} if name == "expert" else {}
    params |= stage_params(name, next(k for k in (2, 3, 1) if size % k == 0))
    return strategy_plan(net, on, name, **params)
