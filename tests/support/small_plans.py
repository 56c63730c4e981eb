"""Small plans for tests."""

from collections.abc import Sequence
from dataclasses import replace

from commsched.machine.model import Device, Link, Machine, placement
from commsched.net.experts import Experts
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Param, Plan
from commsched.planner.launches import buckets, launches
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES

FAST = Link(latency=2e-6, overhead=1e-6, per_byte=1e-9, source="test")
SLOW = Link(latency=10e-6, overhead=2e-6, per_byte=8e-9, source="test")
DEVICE = Device(name="test", memory=1e9, bandwidth=1e11, flops=1e12, source="test")


def machine(nodes: int = 1, lanes: int = 4, jitter: float = 0.0) -> Machine:
    """Fast links inside nodes, slow ones between them."""
    return Machine(
        name="test",
        node_of_rank=placement(nodes, lanes),
        inside=FAST,
        between=SLOW,
        nic=None,
        device=DEVICE,
        jitter=jitter,
        source="test",
    )


def graph(sizes: list[int], seconds: float = 1e-3, rows: int = 0) -> Net:
    """A chain of layers of vectors, or of matrices; backward takes twice as long as forward."""

    def shape(size: int) -> tuple[int, ...]:
        return (rows, size // rows) if rows else (size,)

    layers = tuple(
        Layer(
            name=f"l{i}",
            after=(f"l{i - 1}",) if i else (),
            forward=seconds,
            backward=2 * seconds,
            tensors=(Tensor(name=f"l{i}.weight", shape=shape(size)),),
            activation=100.0,
        )
        for i, size in enumerate(sizes)
    )
    return Net(name="chain", layers=layers, source="test")


def plan(
    net: Net,
    on: Machine,
    methods: list[str],
    bucket: float = 1.0,
    **changes: object,
) -> Plan:
    """Buckets of at most `bucket` bytes, the methods in turn."""
    request = Request(net=net, machine=on)
    turn = iter(range(10**9))

    def choose(launch: Launch) -> Launch:
        return replace(launch, method=methods[next(turn) % len(methods)])

    made = launches(request, buckets(request, bucket), choose)
    return replace(made, **changes)  # type: ignore[arg-type]


def shared(net: Net, parts: int = 12, summed: int = 700) -> Net:
    """Let tensor-parallel ranks share every layer: a pair of sums, whole tensors but the second."""
    layers = []
    for number, layer in enumerate(net.layers):
        tensors = tuple(replace(t, axis=number % 2 - 1) for t in layer.tensors)
        more = {"cut": "pair", "parts": parts, "summed": summed, "whole": 40.0}
        layers.append(replace(layer, tensors=tensors, **more))  # type: ignore[arg-type]
    return replace(net, layers=tuple(layers))


def mixture(net: Net, experts: int = 12, tokens: int = 60, **more: object) -> Net:
    """Make every second layer one of experts, with as many elements as before."""
    layers = list(net.layers)
    for number in range(1, len(layers), 2):
        (tensor,) = layers[number].tensors
        own = replace(tensor, shape=(experts, tensor.numel // experts), axis=0)
        some = Experts(count=experts, tokens=tokens, width=7, **more)  # type: ignore[arg-type]
        layers[number] = replace(layers[number], tensors=(own,), experts=some)
    return replace(net, layers=tuple(layers))


def stage_params(strategy: str, stages: int) -> dict[str, Param]:
    """Parameters of a strategy with `stages` stages of 3 microbatches; {} without stages."""
    known = STRATEGIES[strategy].parameters
    if "microbatches" not in known:
        return {}
    count: dict[str, Param] = {key: stages for key in ("stages", "pipeline") if key in known}
    return count | {"microbatches": 3}


def strategy_plan(net: Net, on: Machine, strategy: str, **params: Param) -> Plan:
    """A plan of any strategy with buckets of 100 kB, by the cheapest methods."""
    request = Request(net=net, machine=on, strategy=strategy, params=params, bucket=1e5)
    return make_plan(request, "greedy")


def daso_plan(
    nodes: int = 2,
    lanes: int = 2,
    sizes: Sequence[int] = (3000, 40000),
    seconds: float = 1e-3,
    on: Machine | None = None,
    **params: Param,
) -> Plan:
    """DASO without warm-up and cool-down, for layers of some elements."""
    usual: dict[str, Param] = {"warmup": 0, "cooldown": 0, "batches": 1000}
    net = graph(list(sizes), seconds)
    return strategy_plan(net, on or machine(nodes, lanes), "daso", **{**usual, **params})
