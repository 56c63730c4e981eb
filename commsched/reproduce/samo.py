"""SAMO on AxoNN, Singh & Bhatele, IPDPS 2023: memory, collectives and batch times on Summit."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np

from commsched.codecs import CODECS
from commsched.collectives.circle import circles, ring_all_gather, ring_reduce_scatter
from commsched.cost.price import exchange
from commsched.ir import Graph
from commsched.ir import file as nets
from commsched.machine import Machine
from commsched.machine import file as machines
from commsched.methods import Payload
from commsched.plan import BucketSpec
from commsched.reproduce.base import (
    PAPERS,
    PUBLISHED_ONLY,
    Paper,
    Row,
    Trend,
    falling,
    predictions,
    root,
)
from commsched.reproduce.steps import computing
from commsched.schedule import Goal, Schedule

SOURCE = (
    "Singh & Bhatele, 'Exploiting sparsity in pruned neural networks to optimize large model"
    " training' (SAMO), IPDPS 2023, arXiv 2302.05045; batch times +-3 %, read off figures; machine:"
    " summit"
)
FORMULA, BARS = 0.01, 0.15  # bars
KEPT = 0.1  # share of the parameters that pruning leaves

# Bytes per parameter, mixed precision and Adam: float16 parameter and gradient, float32 gradient
# and parameter, two float32 moments.
DENSE = 2 + 2 + 4 + 4 + 8
# SAMO keeps the float16 parameter dense; per kept parameter all else, an int32 index, and a
# temporary float16 copy.
WHOLE, COMPRESSED = 2, 2 + 4 + 4 + 8 + 4 + 2


class Model(NamedTuple):
    """A net of the paper: its file, batch, and the inferred pipeline depths of both systems."""

    net: str
    batch: int  # sequences
    axonn: int  # G_inter
    samo: int


# Depths: 8 and 2 for 2.7B give the printed collective times; the others in proportion to the
# parameters, as the nearest powers of two.
MODELS = {
    "GPT-3 XL": Model("gpt3-1.3b", 512, 4, 1),
    "GPT-3 2.7B": Model("gpt3-2.7b", 512, 8, 2),
    "GPT-3 6.7B": Model("gpt3-6.7b", 1024, 16, 4),
}
SYSTEMS = ("AxoNN", "SAMO", "DeepSpeed-3D", "Sputnik")
BATCHES = {  # GPUs -> s of the four systems
    "GPT-3 XL": {
        64: (4.12, 3.69, 4.53, 9.6),
        128: (2.45, 1.92, 2.59, 4.99),
        256: (1.60, 1.065, 1.65, 2.26),
        512: (1.19, 0.633, 1.29, 1.22),
    },
    "GPT-3 2.7B": {
        64: (8.64, 7.67, 9.38, 17.0),
        128: (5.10, 4.13, 5.28, 8.94),
        256: (3.27, 2.38, 3.19, 4.69),
        512: (2.27, 1.505, 2.24, 2.84),
    },
    "GPT-3 6.7B": {128: (16.75, 14.7, 16.6, 38.7), 1024: (4.28, 3.29, 5.31, 8.06)},
}
PARTS = {  # s of a batch of 2.7B on 128 GPUs: AxoNN, SAMO
    "compute": (0.62, 1.21),
    "point-to-point": (2.88, 2.00),
    "bubble": (0.86, 0.39),
    "collective": (0.55, 0.24),
    "other": (0.12, 0.08),
}
PLACES = "ranks are dealt out to nodes in turn, rings follow rank numbers"
DEPTHS = "G_inter 8 and 2 for 2.7B by its collective times, the others by size; microbatches of 1"
STRATEGY = "waits for the strategy 'samo'"
WAITS = "closed form: no packing, no exposed point-to-point; a simulated pipeline is to replace it"


def rows() -> Iterator[Row]:
    """All numbers of the paper that were available."""
    summit = machines.load("summit")
    yield from _memory()
    yield from _parts(summit)
    for name in BATCHES:
        yield from _batches(name, summit)
    yield from _savings(summit)
    yield from _packing()


def trends(found: Sequence[Row]) -> Iterable[Trend]:
    """SAMO is ahead everywhere, more GPUs are faster, and then it is further ahead."""
    for name in BATCHES:
        axonn, samo = (predictions(found, _batch(name), x) for x in SYSTEMS[:2])
        gains = [100 * (1 - new / old) for old, new in zip(axonn, samo, strict=True)]
        ahead = ", ".join(f"{gain:.3g} %" for gain in gains)
        what = f"{name}: SAMO takes less time than AxoNN, the more so the more GPUs"
        met = gains[0] > 0 and sorted(gains) == gains
        yield Trend(what=what, shown=ahead, met=met)
        for system, seconds in zip(SYSTEMS, (axonn, samo), strict=False):
            yield falling(f"{name}: {system} is faster on more GPUs", seconds, "s")


def state(numel: float, kept: float | None = None) -> float:
    """Bytes of parameters, gradients and optimiser; `kept` of them under SAMO, None: dense.

        20 numel;  SAMO (2 + 24 kept) numel

    Source: Singh & Bhatele, IPDPS 2023. Holds for float16 with Adam, over all pipeline stages.
    """
    return numel * (DENSE if kept is None else WHOLE + COMPRESSED * kept)


def _memory() -> Iterator[Row]:
    """Bytes of state, dense and with a share of the parameters kept."""
    for pruned, published in ((0.8, 66.0), (0.9, 78.0)):
        yield Row(
            group="state saved",
            what=f"{pruned:.0%} pruned",
            inputs="20 B per parameter, 2 + 24 (1 - p) B",
            unit="%",
            published=published,
            predicted=100 * (1 - state(1.0, 1 - pruned) / state(1.0)),
            bar=FORMULA,
        )
    yield Row(
        group="pruned share from which it saves",
        what="SAMO",
        inputs="the same",
        unit="",
        published=0.25,
        predicted=1 - root(lambda kept: state(1.0, kept) - state(1.0), 0.01, 1.0),
        bar=FORMULA,
    )
    numel = 2.7e9
    whole = "measured; the state alone is predicted, without activations and buffers"
    for what, published, kept, bar, note in (
        ("state, dense", 54.0, None, FORMULA, "the paper's formula"),
        ("state, SAMO", 11.9, KEPT, FORMULA, "the paper's formula"),
        ("all memory, dense", 80.16, None, None, whole),
        ("all memory, SAMO", 20.28, KEPT, None, whole),
    ):
        yield Row(
            group="memory of 2.7B",
            what=what,
            inputs="2.7e9 parameters" + ("" if kept is None else ", 90 % pruned"),
            unit="GB",
            published=published,
            predicted=state(numel, kept) / 1e9,
            bar=bar,
            note=note,
        )


def collective_seconds(machine: Machine, gpus: int, depth: int, nbytes: float) -> float:
    """Seconds in which all data-parallel groups of a pipeline sum `nbytes` of gradients in rings.

    Stage s of pipeline k is rank k depth + s; the groups' rings go on at the same time. Ranks are
    dealt out to nodes in turn, and rings follow rank numbers: all hops leave their node.
    """
    pipelines = gpus // depth
    if pipelines == 1:
        return 0.0
    nodes = -(-gpus // machine.everyone.lanes)
    on = replace(machine, node_of_rank=tuple(rank % nodes for rank in range(gpus)))
    blocks = np.arange(gpus).reshape(depth, pipelines)
    rings = circles(np.arange(gpus).reshape(pipelines, depth).T, blocks, blocks + 1)
    schedule = Schedule(
        name="rings side by side",
        goal=Goal.ALL_REDUCE,
        ranks=gpus,
        blocks=gpus,
        rounds=lambda: chain(ring_reduce_scatter(rings), ring_all_gather(rings, pipelines)),
    )
    spec = BucketSpec.uniform(round(nbytes / 4))
    payload = Payload.reducing(schedule, CODECS["dense"], spec)
    return float(exchange(schedule, payload, on, on.everyone, np.zeros(gpus)).end.max())


class Batch(NamedTuple):
    """Seconds of a batch, by part."""

    compute: float
    bubble: float
    collective: float

    @property
    def seconds(self) -> float:
        return sum(self)


def batch(machine: Machine, graph: Graph, gpus: int, model: Model, kept: float | None) -> Batch:
    """Seconds of a batch on a pipeline of microbatches of one sequence, then an all-reduce.

        t = batch / gpus * c + (1 - 1 / depth) c + ring of 2 B per parameter

    c [s] = forward and backward of the whole model for one microbatch.
    Source: Singh & Bhatele, IPDPS 2023. Holds where messages between stages hide under compute.
    """
    depth = model.axonn if kept is None else model.samo
    once = computing(graph, machine) / graph.batch
    nbytes = 2.0 * graph.numel * (1.0 if kept is None else kept)
    return Batch(
        compute=model.batch / gpus * once,
        bubble=(1 - 1 / depth) * once,
        collective=collective_seconds(machine, gpus, depth, nbytes),
    )


def _kept(system: str) -> float | None:
    return KEPT if system == "SAMO" else None


def _parts(summit: Machine) -> Iterator[Row]:
    """Where the time of a batch goes: 2.7B on 128 GPUs."""
    model = MODELS["GPT-3 2.7B"]
    graph = nets.load(model.net)
    for number, system in enumerate(SYSTEMS[:2]):
        found = batch(summit, graph, 128, model, _kept(system))
        both = PARTS["compute"][number] + PARTS["point-to-point"][number]
        printed = {part: seconds[number] for part, seconds in PARTS.items()}
        shown = {
            "bubble": (found.bubble, None, WAITS),
            "collective": (found.collective, BARS, ""),
        }
        for part, published in printed.items():
            predicted, bar, note = shown.get(part, (None, None, PUBLISHED_ONLY))
            yield Row(
                group="parts of a batch of 2.7B, 128 GPUs",
                what=f"{system}, {part}",
                inputs=f"G_inter {model[2 + number]}",
                unit="s",
                published=published,
                predicted=predicted,
                bar=bar,
                inferred="" if predicted is None else f"{DEPTHS}; {PLACES}",
                note=note,
            )
        yield Row(
            group="parts of a batch of 2.7B, 128 GPUs",
            what=f"{system}, compute and point-to-point",
            inputs="39 Tflop/s per V100",
            unit="s",
            published=round(both, 3),
            predicted=found.compute,
            inferred="efficiency of the machine file; no recomputation",
            note="sum of two numbers; compute alone is predicted",
        )


def _batch(name: str) -> str:
    return f"batch of {name}"


def _batches(name: str, summit: Machine) -> Iterator[Row]:
    model = MODELS[name]
    graph = nets.load(model.net)
    for number, system in enumerate(SYSTEMS):
        for gpus, printed in BATCHES[name].items():
            ours = number < 2
            found = batch(summit, graph, gpus, model, _kept(system)) if ours else None
            yield Row(
                group=_batch(name),
                what=f"{system}, {gpus} GPUs",
                inputs=f"{model.batch} sequences"
                + (f", G_inter {model[2 + number]}" if ours else ""),
                unit="s",
                published=printed[number],
                predicted=found.seconds if found else None,
                inferred=f"{DEPTHS}; {PLACES}" if ours else "",
                note=WAITS if ours else PUBLISHED_ONLY,
            )


def _savings(summit: Machine) -> Iterator[Row]:
    """What the abstract says: shares of time and memory that are saved on 2.7B."""
    model = MODELS["GPT-3 2.7B"]
    graph = nets.load(model.net)
    old, new = (batch(summit, graph, 512, model, kept) for kept in (None, KEPT))
    for what, published, predicted, note in (
        ("batch time, 512 GPUs, to AxoNN", 34.0, 1 - new.seconds / old.seconds, WAITS),
        ("batch time, 512 GPUs, to DeepSpeed-3D", 32.0, None, PUBLISHED_ONLY),
        ("batch time, 512 GPUs, to Sputnik", 46.0, None, PUBLISHED_ONLY),
        ("communication, 512 GPUs, to AxoNN", 40.0, None, STRATEGY),
        ("memory", 74.0, 1 - state(1.0, KEPT) / state(1.0), "of the state alone"),
    ):
        yield Row(
            group="saved on 2.7B, (old - new) / old",
            what=what,
            inputs="90 % pruned",
            unit="%",
            published=published,
            predicted=None if predicted is None else 100 * predicted,
            inferred=DEPTHS if note == WAITS else "",
            note=note,
        )


def _packing() -> Iterator[Row]:
    """What compressing each microbatch's gradients costs."""
    for what, published in (("least", 8.0), ("most", 12.0)):
        yield Row(
            group="packing, of a batch",
            what=what,
            inputs="2.7B",
            unit="%",
            published=published,
            note=STRATEGY,
        )


PAPERS.add("samo")(Paper(SOURCE, rows, trends))
