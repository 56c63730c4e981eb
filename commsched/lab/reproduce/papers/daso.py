"""DASO, Coquelin et al., 2021: bytes and times of its exchanges, and the time saved."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import ceil, log2

from commsched.lab.reproduce.paper import (
    FORMULA,
    PAPERS,
    RESULT,
    Otherwise,
    Paper,
    PublishedRow,
    Trend,
    below,
    missing,
    predictions,
)
from commsched.lab.reproduce.training_steps import UPDATED, computing
from commsched.machine import file as machines
from commsched.machine.model import Machine, resized
from commsched.machine.stalls import NODE, RANK, Stalls
from commsched.net import file as nets
from commsched.net.compute import fitted
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.planner.baselines.horovod import CYCLE
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.program.model import Kind
from commsched.simulate.engine import simulate
from commsched.simulate.result import Prediction
from commsched.simulate.timetable import PlacedOp

SOURCE = (
    "Coquelin, Debus, Goetz, von der Lehr, Kahn, Siggel & Streit, 'Accelerating neural network"
    " training with distributed asynchronous and selective optimization (DASO)', Journal of Big"
    " Data 9, 2022, arXiv 2104.05588; machine: a100-4xhdr200"
)
NET = "resnet50"
NODES, LANES = 16, 4
GLOBAL = "parameters of a group, ResNet-50"
RINGS = {"": "ring+dense", "blocking": "ring+bf16", "cycling": "ring+dense"}  # by purpose
BATCHES = 40  # of an epoch that is simulated
EPOCHS, BLOCKING = 90, 8  # epochs in all, and in warm-up and cool-down by default
EVEN = "ranks compute equally long, on 16 nodes of 4 A100"
CAUSE = (
    "even ranks have only 9 ms of network to hide; 25 to 34 % need stalls, such as of each node in"
    " 20 % of its batches, 4 in a row, and no law of stalls is printed"
)
TAIL = 2.0  # exponent of the Pareto law of stalls
RARE = 1e-3  # share of stalls at which the Pareto law is cut off
# What is stalled, batches in a row, share of batches, least slowdown.
LAWS = ((NODE, 1, 0.2, 0.5), (NODE, 4, 0.2, 0.5), (NODE, 20, 0.2, 0.5), (RANK, 1, 0.02, 0.5))


def rows() -> Iterator[PublishedRow]:
    """Yield the one available number of the paper, and its formulas."""
    yield from _bytes()
    yield from _saved()
    yield missing("times and accuracies by number of GPUs", "its own training runs")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check that a global sum that is merged a batch later hides completely."""
    batch = 1e3 * computing(_net(), _machine())
    what = f"a sum between nodes hides under the next batch of ResNet-50, {batch:.0f} ms"
    yield below(what, predictions(found, GLOBAL)[0], batch, "ms")


def _machine(stalls: tuple[Stalls, ...] = ()) -> Machine:
    return replace(resized(machines.load("a100-4xhdr200"), NODES, LANES), stalls=stalls)


@cache
def _net() -> Net:
    """Return ResNet-50 with its layer times of a V100 scaled to an A100."""
    return fitted(nets.load(NET), _machine().device)


@lru_cache(maxsize=8)
def _daso(stalls: tuple[Stalls, ...]) -> Prediction:
    """Simulate a warm-up epoch and an epoch of stale exchanges, of 40 batches each."""
    params = {"batches": BATCHES, "warmup": 1, "cooldown": 0}
    request = Request(net=_net(), machine=_machine(stalls), strategy="daso", params=params)
    plan = make_plan(request, "ddp-25mb")
    rings = (
        replace(launch, method=RINGS.get(launch.purpose, launch.method)) for launch in plan.launches
    )
    return simulate(replace(plan, launches=tuple(rings)), 2 * BATCHES)


@lru_cache(maxsize=8)
def _synchronous(stalls: tuple[Stalls, ...]) -> Prediction:
    """Simulate an epoch of data parallelism with the buckets of Horovod's cycles."""
    request = Request(net=_net(), machine=_machine(stalls), params=UPDATED)
    return simulate(make_plan(request, "horovod-64mb"), BATCHES)


def _first(purpose: str) -> list[PlacedOp]:
    """Return the exchanges of a purpose in the first step that has any, on one set of ranks."""
    found = _daso(())
    plan: Plan = found.plan
    every = [
        p
        for p in found.placed
        if p.op.kind is Kind.EXCHANGE and plan.launches[p.op.launch].purpose == purpose
    ]
    step = min(p.step for p in every)
    ranks = next(set(p.ranks.tolist()) for p in every if p.step == step)
    return [p for p in every if p.step == step and set(p.ranks.tolist()) == ranks]


def _bytes() -> Iterator[PublishedRow]:
    """Compare the bytes of each exchange with its formula, and the seconds of the stale one."""
    whole = 4.0 * nets.load(NET).numel
    inside, between = 2 * (LANES - 1) / LANES, 2 * (NODES - 1) / NODES
    for what, formula, purpose in (
        ("gradients inside a node", inside * whole, ""),
        ("parameters of a group", between * whole, "cycling"),
        ("the same, bf16", between * whole / 2, "blocking"),
    ):
        yield PublishedRow(
            group="bytes from a rank, ResNet-50",
            what=what,
            inputs=f"{whole / 1e6:.4g} MB, {NODES} nodes of {LANES}",
            unit="MB",
            derived=formula / 1e6,
            predicted=sum(float(p.sent.mean()) for p in _first(purpose)) / 1e6,
            bar=FORMULA,
            note="rings inside nodes and between them",
        )
    yield PublishedRow(
        group=GLOBAL,
        what="a ring between nodes",
        inputs=f"{whole / 1e6:.4g} MB, 25 GB/s",
        unit="ms",
        derived=8.0,
        predicted=1e3 * sum(float(p.end.max() - p.start.max()) for p in _first("cycling")),
        bar=RESULT,
        note="2 M / B; a prediction has latency, too",
    )


def _saved() -> Iterator[PublishedRow]:
    """Compare a whole training with stale exchanges to a synchronous one."""
    compute = 1e3 * computing(_net(), _machine())
    yield PublishedRow(
        group="training time saved",
        what="up to (abstract), for ResNet-50",
        inputs="every 4 batches, merged 1 later; 8 of 90 epochs blocking",
        unit="%",
        published=34.0,
        predicted=_share_saved(()),
        inferred=tuple(
            Otherwise(
                inferred=EVEN,
                instead=f"each {law[0]} is stalled in {law[2]:.0%} of its batches, {law[1]} in a"
                f" row, by {law[3]:.0%} and more, P(x) ~ x^-{TAIL:g}",
                predicted=_share_saved((_pareto(*law),)),
            )
            for law in LAWS
        ),
        note=f"{compute:.0f} ms of compute, scaled from a V100; against Horovod: 64 MB, cycles of"
        f" {1e3 * CYCLE:g} ms, negotiation of {1e3 * _negotiation():.2f} ms",
        cause=CAUSE,
    )


def _share_saved(stalls: tuple[Stalls, ...]) -> float:
    baseline = _batch(_synchronous(stalls), 0) + CYCLE + _negotiation()
    return 100 * (1 - _training(stalls) / baseline)


def _negotiation() -> float:
    """Return the seconds of Horovod's negotiation: a tree to the first rank, and a tree back.

        2 ceil(log2 p) (L + 2 o)

    p = ranks; L, o [s] of the links between nodes. Nothing hides the negotiation of the last
    bucket, nor the cycle at whose end the bucket starts.
    Source: Sergeev & Del Balso, "Horovod", arXiv 1802.05799, 2018. Holds for small messages.
    """
    between = _machine().between
    return 2 * ceil(log2(NODES * LANES)) * (between.latency + 2 * between.overhead)


def _pareto(among: str, steps: int, share: float, least: float) -> Stalls:
    points = ((share, least), (share * RARE, least * RARE ** (-1 / TAIL)))
    return Stalls(among=among, steps=steps, points=points)


def _training(stalls: tuple[Stalls, ...]) -> float:
    """Return the mean seconds of a batch over all epochs."""
    found = _daso(stalls)
    return (BLOCKING * _batch(found, 0) + (EPOCHS - BLOCKING) * _batch(found, BATCHES)) / EPOCHS


def _batch(found: Prediction, first: int) -> float:
    """Return the mean seconds of a batch of the epoch that begins with step `first`."""
    last = first + BATCHES
    end = found.end if last == found.steps else float(found.starts[last].max())
    return (end - float(found.starts[first].max())) / BATCHES


PAPERS.add("daso")(Paper(SOURCE, rows, trends))
