"""Local parallelism, Laskin et al., 2020: the cost of heads, and the period of a stream."""

from collections.abc import Iterator, Sequence

from commsched.ir import Graph, Layer
from commsched.ir import file as nets
from commsched.ir.transformer import gpt
from commsched.machine import Machine
from commsched.machine import file as machines
from commsched.reproduce.base import PAPERS, Paper, Row, Trend, predictions

SOURCE = (
    "Laskin, Metz, Nabarrao, Saroufim, Noune, Luschi, Sohl-Dickstein & Abbeel, 'Parallel training"
    " of deep networks with local updates', 2020, arXiv 2012.03837; machine: summit"
)
FORMULA = 0.01  # bar
STAGES, MICROBATCHES = 8, 8
PERIOD = "GPT-3 XL, seconds per microbatch"
OURS = "closed form; a simulated stream and pipeline are to replace it"
TABLES = "the paper's tables were not available"


def rows() -> Iterator[Row]:
    """The one number that was available, and ours where its tables were not."""
    yield from _heads()
    yield from _periods(machines.load("summit"))
    for what in ("loss over compute", "memory", "communication"):
        yield Row(
            group="claims",
            what=what,
            inputs="backprop, greedy, overlapping, chunked",
            unit="",
            published=None,
            note=f"{TABLES}; 'commsched train' is to give ours",
        )


def trends(found: Sequence[Row]) -> Iterator[Trend]:
    """Streaming without heads is faster than a pipeline that drains; heads cost it."""
    flushed, headed, bare = predictions(found, PERIOD)
    yield Trend(
        what="a stream is faster than a pipeline that drains after each batch",
        shown=f"{bare:.3g} < {flushed:.3g} s",
        met=bare < flushed,
    )
    yield Trend(
        what="the same with a language model's head per stage: put heads on chunks",
        shown=f"{headed:.3g} < {flushed:.3g} s",
        met=headed < flushed,
        required=False,
    )


def _numel(layers: Sequence[Layer]) -> int:
    return sum(tensor.numel for layer in layers for tensor in layer.tensors)


def _heads() -> Iterator[Row]:
    """A head's matrix over a block of a small language model."""
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
    words = net.tensors["wte.weight"].numel  # a head has as many
    yield Row(
        group="parameters of a head over a block's",
        what="d = 512, V = 32,000",
        inputs="12 d^2 in a block, V d in a head",
        unit="x",
        published=5.2,
        predicted=words / _numel(_block(net, 0)),
        bar=FORMULA,
        note="not printed in the paper",
    )


def _block(net: Graph, number: int) -> list[Layer]:
    return [layer for layer in net.layers if layer.name.startswith(f"h.{number}.")]


def _periods(machine: Machine) -> Iterator[Row]:
    """Seconds per microbatch of a flushed pipeline and of streams of local blocks.

        flushed (m + K - 1) / m max_k (f + b);  stream max_k (f + b + head)

    K stages of equally many blocks; m microbatches; f, b [s] of a stage; the head of a stage costs
    what the last one's does.
    Source: section 2 of the paper for the stream; Huang et al., "GPipe", NeurIPS 2019.
    """
    net = nets.load("gpt3-1.3b")
    blocks = {layer.name.split(".")[1] for layer in net.layers if layer.name.startswith("h.")}

    def seconds(layers: Sequence[Layer]) -> float:
        return sum(sum(net.seconds(layer, machine.device)) for layer in layers)

    stage = len(blocks) / STAGES * seconds(_block(net, 0))
    head = seconds([layer for layer in net.layers if layer.name == "head"])
    for what, period in (
        (
            f"flushed, {MICROBATCHES} microbatches",
            (MICROBATCHES + STAGES - 1) / MICROBATCHES * stage,
        ),
        ("greedy, a head per stage", stage + head),
        ("greedy, heads for nothing", stage),
    ):
        yield Row(
            group=PERIOD,
            what=what,
            inputs=f"{STAGES} V100, {len(blocks) // STAGES} blocks each",
            unit="s",
            published=None,
            predicted=period,
            inferred="net, stages and microbatches are ours",
            note=f"{TABLES}; {OURS}",
        )


PAPERS.add("local")(Paper(SOURCE, rows, trends))
