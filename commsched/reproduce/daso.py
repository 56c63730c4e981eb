"""DASO, Coquelin et al., 2021: bytes of its three exchanges, and what a step leaves to save."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from commsched.cost.price import Price, price
from commsched.ir import Graph
from commsched.ir import file as nets
from commsched.machine import Machine, resized
from commsched.machine import file as machines
from commsched.methods import find_method
from commsched.plan import BucketSpec
from commsched.planner import Request, make_plan
from commsched.planner.timing import iteration
from commsched.reproduce.base import PAPERS, Paper, Row, Trend, below, predictions
from commsched.reproduce.steps import UPDATED, computing

SOURCE = (
    "Coquelin, Debus, Goetz, von der Lehr, Kahn, Siggel & Streit, 'Accelerating neural network"
    " training with distributed asynchronous and selective optimization (DASO)', Journal of Big"
    " Data 9, 2022, arXiv 2104.05588; machine: a100-4xhdr200"
)
FORMULA = 0.01  # bar
NODES, LANES = 16, 4
GLOBAL = "parameters of a group, ResNet-50"
JITTER = 0.1  # sigma of a batch's compute
WHERE = "16 nodes of 4 A100; layer times of one V100"


def rows() -> Iterator[Row]:
    """All numbers of the paper that were available: one, and the formulas behind it."""
    machine, graph = resized(machines.load("a100-4xhdr200"), NODES, LANES), nets.load("resnet50")
    yield from _bytes(machine, graph)
    yield from _saved(machine, graph)


def trends(found: Sequence[Row]) -> Iterable[Trend]:
    """What a global sum leaves exposed if the ranks merge it a batch later: nothing."""
    machine, graph = machines.load("a100-4xhdr200"), nets.load("resnet50")
    batch = 1e3 * computing(graph, machine)
    what = f"a sum between nodes hides under the next batch of ResNet-50, {batch:.0f} ms"
    yield below(what, predictions(found, GLOBAL)[0], batch, "ms")


def _ring(machine: Machine, nodes: int, lanes: int, numel: int, codec: str) -> Price:
    on = resized(machine, nodes, lanes)
    return price(find_method(f"ring+{codec}"), BucketSpec.uniform(numel), on, on.everyone)


def _bytes(machine: Machine, graph: Graph) -> Iterator[Row]:
    """The bytes of each exchange by its formula and as priced."""
    whole = 4.0 * graph.numel
    inside, between = 2 * (LANES - 1) / LANES, 2 * (NODES - 1) / NODES
    for what, formula, found in (
        ("gradients inside a node", inside * whole, _ring(machine, 1, LANES, graph.numel, "dense")),
        ("parameters of a group", between * whole, _ring(machine, NODES, 1, graph.numel, "dense")),
        ("the same, bf16", between * whole / 2, _ring(machine, NODES, 1, graph.numel, "bf16")),
    ):
        yield Row(
            group="bytes from a rank, ResNet-50",
            what=what,
            inputs=f"{whole / 1e6:.4g} MB, {NODES} nodes of {LANES}",
            unit="MB",
            published=formula / 1e6,
            predicted=found.sent / 1e6,
            bar=FORMULA,
            inferred="the formula: rings inside nodes and between them",
            note="the formula, which the paper does not print",
        )
    yield Row(
        group=GLOBAL,
        what="a ring between nodes",
        inputs=f"{whole / 1e6:.4g} MB, 25 GB/s",
        unit="ms",
        published=8.0,
        predicted=_ring(machine, NODES, 1, graph.numel, "dense").exchange * 1e3,
        inferred=f"{NODES} nodes",
        note="2 M / B, which the paper does not print; a prediction has latency, too",
    )


def _saved(machine: Machine, graph: Graph) -> Iterator[Row]:
    """At most what a synchronous step spends on anything but its own compute."""
    compute = computing(graph, machine)
    request = Request(graph=graph, machine=machine, params=UPDATED)
    plan = make_plan(request, "ddp-25mb")
    clean = iteration(plan)
    uneven = iteration(replace(plan, machine=replace(machine, jitter=JITTER)))
    for what, predicted, inferred, note in (
        ("at most, even ranks", 1 - compute / clean, WHERE, "what a synchronous step exposes"),
        (
            f"at most, compute varies by {JITTER:.0%}",
            1 - compute / uneven,
            f"{WHERE}; jitter",
            "the same, and what ranks wait for the slowest",
        ),
        ("DASO simulated", None, "", "waits for the strategy 'daso'"),
    ):
        yield Row(
            group="training time saved",
            what=what,
            inputs="ResNet-50, buckets of 25 MB" if predicted is not None else "",
            unit="%",
            published=34.0,
            predicted=None if predicted is None else 100 * predicted,
            inferred=inferred,
            note=note,
        )


PAPERS.add("daso")(Paper(SOURCE, rows, trends))
