"""Small plans with stages for tests."""

from dataclasses import replace

from commsched.machine.model import Link, Machine, Nic
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine

FREE = Link(latency=0.0, overhead=0.0, per_byte=0.0, source="test")
FORWARD, BACKWARD = 1e-3, 2e-3  # s of a layer


def free(on: Machine) -> Machine:
    """The machine with links that cost nothing."""
    return replace(on, inside=FREE, between=FREE)


def net(layers: int, elements: int = 100, activation: float = 4000.0) -> Net:
    """A chain of equal layers."""
    made = graph([elements] * layers, FORWARD)
    kept = (replace(layer, activation=activation) for layer in made.layers)
    return replace(made, layers=tuple(kept))


def shared_nic(on: Machine, per_byte: float) -> Machine:
    """The machine with one network port per node."""
    return replace(on, nic=Nic(per_node=1, per_byte=per_byte, source="test"))


def staged(
    strategy: str,
    stages: int,
    replicas: int = 1,
    layers: int | Net | None = None,
    on: Machine | None = None,
    **params: object,
) -> Plan:
    """A plan of stages and replicas, a layer per stage unless told otherwise."""
    made = layers if isinstance(layers, Net) else net(layers or stages)
    request = Request(
        net=made,
        machine=on or machine(1, stages * replicas),
        strategy=strategy,
        params={"stages": stages, **params},  # type: ignore[dict-item]
    )
    return make_plan(request)


def without_launches(made: Plan) -> Plan:
    """The same pipeline, which neither sums nor updates anything."""
    bare = (replace(layer, tensors=()) for layer in made.net.layers)
    return replace(made, launches=(), net=replace(made.net, layers=tuple(bare)))


def makespan(made: Plan, steps: int = 1) -> float:
    """Seconds until the last operation of some steps ends."""
    return float(simulate(made, steps).timeline().end.max())
