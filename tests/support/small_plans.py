"""Small plans for tests."""

from dataclasses import replace

from commsched.machine.model import Device, Link, Machine, placement
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Param, Plan
from commsched.planner.launches import buckets, launches
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request

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


def graph(sizes: list[int], seconds: float = 1e-3) -> Net:
    """A chain of layers; backward takes twice as long as forward."""
    layers = tuple(
        Layer(
            name=f"l{i}",
            after=(f"l{i - 1}",) if i else (),
            forward=seconds,
            backward=2 * seconds,
            tensors=(Tensor(name=f"l{i}.weight", shape=(size,)),),
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


def strategy_plan(net: Net, on: Machine, strategy: str, **params: Param) -> Plan:
    """A plan of any strategy with buckets of 100 kB, by the cheapest methods."""
    request = Request(net=net, machine=on, strategy=strategy, params=params, bucket=1e5)
    return make_plan(request, "greedy")
