"""Local parallelism, Laskin et al., 2020: the cost of heads, and the period of a stream."""

from collections.abc import Iterator, Sequence
from functools import cache

from commsched.lab.reproduce.paper import (
    FORMULA,
    PAPERS,
    Paper,
    PublishedRow,
    Trend,
    predictions,
)
from commsched.lab.reproduce.training_steps import memory, pipelined
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net import file as nets
from commsched.net.generate.transformer import gpt
from commsched.net.graph import Layer, Net
from commsched.plan.model import Param
from commsched.simulate.engine import simulate

SOURCE = (
    "Laskin, Metz, Nabarrao, Saroufim, Noune, Luschi, Sohl-Dickstein & Abbeel, 'Parallel training"
    " of deep networks with local updates', 2020, arXiv 2012.03837; machine: summit"
)
STAGES, MICROBATCHES = 8, 8
HIDDEN, SEQUENCE = 2048, 2048  # of GPT-3 XL
PERIOD = "GPT-3 XL, seconds per microbatch"
GROUPS = (
    (PERIOD, "s"),
    ("GPT-3 XL, memory of the rank that needs most", "GB"),
    ("GPT-3 XL, bytes from the rank that sends most, per microbatch", "MB"),
)
SYSTEMS: dict[str, tuple[str, dict[str, Param]]] = {
    "flushed": ("1f1b", {}),
    "greedy, a head per stage": ("local", {"head": 1.0}),
    "chunked, a head for 4 stages": ("local", {"variant": "chunked", "chunks": 2}),
    "greedy, heads for nothing": ("local", {"head": 0.0}),
}
TABLES = "the paper's tables were not available"


def rows() -> Iterator[PublishedRow]:
    """Yield the one available number, and our predictions for the missing tables."""
    yield from _heads()
    yield from _periods()
    yield PublishedRow(
        group="claims",
        what="loss over compute",
        inputs="backprop, greedy, overlapping, chunked",
        unit="",
        note=f"{TABLES}; 'commsched train' gives ours",
    )


def trends(found: Sequence[PublishedRow]) -> Iterator[Trend]:
    """Check that streaming beats a draining pipeline without heads, and does not with heads."""
    flushed, headed, chunked, bare = predictions(found, PERIOD)
    for what, seconds, limit, required in (
        ("a stream is faster than a pipeline that drains after each batch", bare, flushed, True),
        ("the same with a language model's head per stage", headed, flushed, False),
        ("the same with its heads on chunks of 4 stages", chunked, flushed, False),
    ):
        shown = f"{seconds:.3g} s against {limit:.3g} s"
        yield Trend(what=what, shown=shown, met=seconds < limit, required=required)


def _numel(layers: Sequence[Layer]) -> int:
    return sum(tensor.numel for layer in layers for tensor in layer.tensors)


def _heads() -> Iterator[PublishedRow]:
    """Compare the parameters of a head and of a block of a small language model."""
    hidden, vocabulary = 512, 32_000
    net = gpt(
        "small",
        layers=1,
        hidden=hidden,
        heads=8,
        sequence=512,
        vocabulary=vocabulary,
        batch=1,
    )
    words = net.tensors["wte.weight"].numel  # elements of a head's matrix
    yield PublishedRow(
        group="parameters of a head over a block's",
        what="d = 512, V = 32,000",
        inputs="12 d^2 in a block, V d in a head",
        unit="x",
        derived=5.2,
        predicted=words / _numel(_block(net, 0)),
        bar=FORMULA,
    )


def _block(net: Net, number: int) -> list[Layer]:
    return [layer for layer in net.layers if layer.name.startswith(f"h.{number}.")]


def _periods() -> Iterator[PublishedRow]:
    """Time, memory and bytes of a pipeline that flushes and of streams of local blocks."""
    for number, (group, unit) in enumerate(GROUPS):
        for what, (strategy, params) in SYSTEMS.items():
            yield PublishedRow(
                group=group,
                what=what,
                inputs=f"{STAGES} V100, {MICROBATCHES} microbatches, strategy {strategy!r}",
                unit=unit,
                predicted=_found(strategy, tuple(params.items()))[number],
                note=f"{TABLES}; net, stages and microbatches are ours",
            )


@cache
def _found(strategy: str, params: tuple[tuple[str, Param], ...]) -> tuple[float, float, float]:
    """Return s per microbatch once all stages are busy, GB in memory, MB sent per microbatch."""
    plan = pipelined(
        nets.load("gpt3-1.3b"),
        resized(machines.load("summit"), 2, STAGES // 2),
        strategy,
        "ring+dense",
        stages=STAGES,
        microbatches=MICROBATCHES,
        message_bytes=2.0 * SEQUENCE * HIDDEN,
        optimizer="adam",
        **dict(params),
    )
    steps = STAGES + 2  # all stages are busy by then
    found = simulate(plan, steps)
    period = float((found.starts[-1] - found.starts[-2]).max())
    sent = max(
        sum(float(p.sent.sum()) for p in found.placed if r in p.ranks) for r in range(STAGES)
    )
    many = steps * MICROBATCHES
    return period / MICROBATCHES, memory(plan).total / 1e9, sent / many / 1e6


PAPERS.add("local")(Paper(SOURCE, rows, trends))
