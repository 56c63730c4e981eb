"""Advice for a plan that does not fit into its device's memory: a strategy that fits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.plan.model import Param, Plan
from commsched.planner.limits.memory import needed
from commsched.planner.make_plan import make_plan
from commsched.planner.pipelines import most_stages, staged
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy
from commsched.units import nbytes

# Strategies and parameters that need less memory; those that change the training least come first.
CHANGES: tuple[Mapping[str, Param], ...] = ({}, {"recompute": 1})


class Smaller(NamedTuple):
    """A strategy by which a net fits."""

    strategy: str
    params: Mapping[str, Param]
    memory: float  # B on the rank that needs most


def too_large(plan: Plan, look: bool = True) -> list[str]:
    """Say if a plan does not fit; `look`: also compute and name a strategy that fits."""
    limit, wanted = plan.machine.device.memory, needed(plan)
    if wanted <= limit:
        return []
    known = any(layer.activation for layer in plan.net.layers)
    start = (
        f"the plan does not fit: a rank needs {'' if known else 'at least '}"
        f"{nbytes(wanted)}, and {plan.machine.device.name} has {nbytes(limit)}"
    )
    # The memory of a rank with some experts does not tell the memory of a rank with all of them.
    if isinstance(STRATEGIES[plan.strategy], PipelineStrategy) or plan.net.experts > 1 or not look:
        return [start]
    found = next(smaller(plan), None)
    if found is None:
        return [f"{start}; no pipeline of {plan.machine.size} ranks fits either"]
    more = "".join(f" --param {key}={value}" for key, value in found.params.items())
    return [f"{start}; --strategy {found.strategy}{more} fits with {nbytes(found.memory)}"]


def smaller(plan: Plan) -> Iterator[Smaller]:
    """Yield the pipelines in which a plan's net fits; those that sum all gradients come first."""
    names = [name for name, found in STRATEGIES.items() if isinstance(found, PipelineStrategy)]
    for name in sorted(names, key=lambda name: (name == "local", name == "samo", name)):
        defaults = STRATEGIES[name].defaults
        own = {k: plan.params[k] for k in ("optimizer",) if k in plan.params and k in defaults}
        own = {key: value for key, value in own.items() if value != defaults[key]}
        for change in CHANGES:
            if not change.keys() <= defaults.keys():
                continue
            params = {**own, **change}
            request = Request(net=plan.net, machine=plan.machine, strategy=name, params=params)
            most = replace(request, params={**params, "stages": most_stages(request)})
            try:
                if needed(staged(most)) > plan.machine.device.memory:
                    continue
                memory = needed(make_plan(request))  # its methods keep packets, too
                if memory <= plan.machine.device.memory:
                    yield Smaller(name, params, memory)
            except CommschedError:  # the net cannot be cut into stages
                continue
