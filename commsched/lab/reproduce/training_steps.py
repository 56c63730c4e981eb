"""Simulated training steps whose exchanges all use given methods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from commsched.exchange.registry import find_method
from commsched.machine.model import Machine
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Param, Plan
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy, Stage, grid
from commsched.program.strategy import Memory
from commsched.program.units import GATHER, REGATHER
from commsched.simulate.engine import simulate
from commsched.timeline.measure import busy, exposed, idle

RING = "ring+fp16"
UPDATED: Mapping[str, str] = {"overlap": "backward"}  # all parameters at the end of a step


def one_layer(name: str, numel: int, seconds: float) -> Net:
    """Return a net of one layer: its float32 elements, and seconds of forward and backward."""
    tensor = Tensor(name="parameters", shape=(numel,))
    third = seconds / 3
    layer = Layer(name="all", tensors=(tensor,), forward=third, backward=2 * third)
    return Net(name=name, layers=(layer,))


def in_turn(net: Net, machine: Machine, method: str) -> float:
    """Return the seconds of a step that exchanges all gradients in one bucket after backward."""
    launch = Launch(
        name="gradients",
        pieces=tuple(Piece(t.name, 0, t.numel) for t in net.tensors.values()),
        after=net.layers[0].name,
        method=method,
        stream="between",
    )
    return iteration(Plan(net=net, machine=machine, launches=(launch,), params=UPDATED))


def overlapped(net: Net, machine: Machine, methods: Mapping[str, str]) -> float:
    """Return the seconds of a step that exchanges each tensor by its method once it is ready."""
    request = Request(
        net=net, machine=machine, params=UPDATED, force=methods, lossy=_lossy(methods)
    )
    return iteration(make_plan(request, "per-tensor"))


def _lossy(methods: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lossy codecs and methods among them."""
    found = {find_method(name) for name in set(methods.values())}
    names = (method.coding for method in found if not method.lossless)
    return tuple(sorted(names))


def computing(net: Net, machine: Machine) -> float:
    """Return the seconds of the forward and the backward pass alone."""
    return sum(sum(net.seconds(layer, machine.device)) for layer in net.layers)


def pipelined(graph: Net, machine: Machine, strategy: str, method: str, **params: Param) -> Plan:
    """Plan a pipeline whose stages each sum their gradients in one bucket by a method."""
    chosen = STRATEGIES[strategy]
    assert isinstance(chosen, PipelineStrategy)
    nothing = Plan(net=graph, machine=machine, launches=(), strategy=strategy, params=params)
    net, settings = chosen.prepare(graph, machine, chosen.settings(nothing))
    plan = replace(nothing, net=net, params=settings)
    launches = tuple(
        Launch(
            name=f"s{stage.number}",
            pieces=tuple(
                Piece(t.name, 0, t.numel) for layer in stage.layers for t in layer.tensors
            ),
            after=stage.layers[0].name,
            method=method,
            stream="between",
            group=stage.ranks,
        )
        for stage in grid(plan, settings)
    )
    return replace(plan, launches=launches)


def gridded(graph: Net, machine: Machine, **params: Param) -> Plan:
    """Plan `3d` in float16; all sums are rings, and each stage has one bucket of gradients.

    zero=1: gradients end in shards, and parameters are gathered.
    """
    nothing = Plan(net=graph, machine=machine, launches=(), strategy="3d", params=params)
    chosen = STRATEGIES["3d"]
    assert isinstance(chosen, PipelineStrategy)
    net, settings = chosen.prepare(graph, machine, chosen.settings(nothing))
    plan = replace(nothing, net=net, params=settings)
    zero = bool(settings["zero"])
    launches = [launch for stage in grid(plan, settings) for launch in _sums_of(stage, zero)]
    return replace(plan, launches=tuple(launches))


def _sums_of(stage: Stage, zero: bool) -> Iterator[Launch]:
    """Yield the sums of a stage: of activations if ranks share its layers, and of gradients."""
    for layer in {x.summed: x for x in stage.layers if x.summed and stage.width > 1}.values():
        yield Launch(
            name=f"s{stage.number}/t{layer.summed}",
            pieces=(),
            activations=layer.summed,
            after=layer.name,
            method=RING,
            stream="inside",
            payload="activation",
            group=stage.ranks,
            split=stage.replicas,
            purpose="tensor",
        )
    gradients = Launch(
        name=f"s{stage.number}",
        pieces=tuple(Piece(t.name, 0, t.numel) for x in stage.layers for t in x.tensors),
        after=stage.layers[0].name,
        method=RING,
        stream="between",
        group=stage.alike,
        split=stage.width,
    )
    if not zero or stage.replicas == 1:
        yield gradients
        return
    yield replace(gradients, method="shard:reduce-scatter+fp16")
    yield replace(
        gradients,
        name=f"g{stage.number}",
        method="shard:all-gather+fp16",
        payload="parameter",
        purpose=GATHER,
    )


def fully_sharded(net: Net, machine: Machine, reduce: str, again: bool) -> Plan:
    """Plan `zero3` in float16 with blocks as units; a codec sums the gradients.

    again: parameters are dropped after forward, and gathered again before backward.
    """
    found: dict[str, list[Layer]] = {}
    for layer in net.layers:
        if layer.tensors:
            found.setdefault(layer.block or layer.name, []).append(layer)
    units = [*found.values()]
    levels = "-levels" if machine.nodes > 1 else ""
    gather = f"shard:all-gather{levels}+fp16"
    launches = [
        *_of_units("g", "", units[::-1], f"shard:reduce-scatter{levels}+{reduce}", machine),
        *_of_units("p", GATHER, units, gather, machine),
        *_of_units("r", REGATHER, units[-2::-1] if again else [], gather, machine),
    ]
    params: Mapping[str, Param] = {"optimizer": "adam"}
    return Plan(net=net, machine=machine, launches=tuple(launches), strategy="zero3", params=params)


def _of_units(
    stem: str, purpose: str, units: Sequence[Sequence[Layer]], method: str, machine: Machine
) -> Iterator[Launch]:
    """Yield a launch for each unit."""
    for number, unit in enumerate(units):
        yield Launch(
            name=f"{stem}{number}",
            pieces=tuple(Piece(t.name, 0, t.numel) for layer in unit for t in layer.tensors),
            after=unit[0].name,
            method=method,
            stream="between" if machine.nodes > 1 else "inside",
            payload="parameter" if purpose else "gradient",
            priority=number,
            purpose=purpose,
        )


def memory(plan: Plan) -> Memory:
    """Return the bytes of memory on the rank that needs most."""
    return STRATEGIES[plan.strategy].memory(plan)


class Batch(NamedTuple):
    """Seconds of one step of a pipeline and of its parts: means over the ranks."""

    seconds: float
    compute: float
    messages: float  # messages that no compute hides
    bubble: float  # idle time since the first stage's start
    waited: float  # waiting for the other replicas of a stage
    collective: float  # collectives since the arrival of the last replica


def simulated(plan: Plan) -> Batch:
    """Simulate the first step of a pipeline that flushes."""
    prediction = simulate(plan, 1)
    timeline = prediction.timeline()
    spent = busy(timeline).mean(axis=(0, 1))
    streams = dict(zip(timeline.streams, spent.tolist(), strict=True))
    exchanges = [p for p in prediction.placed if p.op.kind is Kind.EXCHANGE]
    spent_together = sum(len(p.ranks) * float(p.end.max() - p.start.max()) for p in exchanges)
    collective = spent_together / plan.machine.size
    exchanging = streams["inside"] + streams["between"]
    return Batch(
        seconds=prediction.end,
        compute=streams["compute"],
        messages=float(exposed(timeline).mean()) - exchanging,
        bubble=float((prediction.starts[0] + idle(timeline)[:, 0]).mean()),
        waited=exchanging - collective,
        collective=collective,
    )
