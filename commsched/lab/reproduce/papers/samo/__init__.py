"""SAMO on AxoNN, Singh & Bhatele, IPDPS 2023: memory, collectives and batch times on Summit."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from commsched.lab.reproduce.paper import (
    FORMULA,
    PAPERS,
    PUBLISHED_ONLY,
    Otherwise,
    Paper,
    PublishedRow,
    Trend,
    falling,
    missing,
    predictions,
    root,
)
from commsched.lab.reproduce.papers.samo.systems import (
    AXONN,
    DEEPSPEED,
    METHOD,
    MODELS,
    PRUNED,
    SAMO,
    SPUTNIK,
    SYSTEMS,
    batch,
    deepspeed,
    depth,
    filled,
    plan_of,
    ruled,
)
from commsched.lab.reproduce.training_steps import memory, pipelined, simulated
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net.graph import Layer, Net, Tensor
from commsched.program.model import Kind
from commsched.program.registry import STRATEGIES
from commsched.program.stages import grid

SOURCE = (
    "Singh & Bhatele, 'Exploiting sparsity in pruned neural networks to optimize large model"
    " training' (SAMO), IPDPS 2023, arXiv 2302.05045; batch times +-3 %, read off figures; machine:"
    " summit"
)
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
PLACES = "ranks are dealt out to nodes in turn, rings follow rank numbers; microbatches of 1"
DEPTHS = (
    "G_inter: the least power of two from 2 on whose stages fit into 15 of 16 GB, blocks computed"
    " again"
)
KERNELS = (
    "memory-bound kernels run at the data sheet's 900 GB/s here, no host waits between kernels, and"
    " packing is 1 % of a batch where the paper has 8 to 12"
)
CAUSES = {
    AXONN: KERNELS,
    SAMO: KERNELS,
    DEEPSPEED: "its degrees are not printed, and DeepSpeed's pipeline engine is not modelled",
    SPUTNIK: "27 % of a V100's float32 peak, from its own paper's abstract, is what its best"
    " products reach",
}
PACKED_SLOWLY = "2 B of every touched sector and 8 B per kept value take 7 ms of a microbatch's 680"
WAITING = "its compute of .62 s is below a V100's peak, so that its parts divide otherwise"
SLOW_SUM = "half of it is the ring of a quarter of the net over a sixth of a node's port"
DIFFERENCE = (
    "SAMO's batch is a tenth shorter than printed, AxoNN's 3 % longer: a saving has both errors"
)
BUFFERS = "a measured sum with buffers of libraries, on a depth that is not printed"
OURS = (AXONN, SAMO)  # systems whose parts of a batch the paper prints
SHOWN = "GPT-3 2.7B"


def rows() -> Iterator[PublishedRow]:
    """Yield all numbers of the paper that were available."""
    yield from _memory()
    yield from _parts()
    for name in BATCHES:
        yield from _batches(name)
    yield from _savings()
    yield from _packing()
    yield missing("batch of GPT-3 13B", "40 layers of 5120")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check that SAMO is faster everywhere, the more so the more GPUs, and that both scale."""
    for name in BATCHES:
        axonn, samo = (predictions(found, _batch(name), x) for x in OURS)
        gains = [100 * (1 - new / old) for old, new in zip(axonn, samo, strict=True)]
        ahead = ", ".join(f"{gain:.3g} %" for gain in gains)
        what = f"{name}: SAMO takes less time than AxoNN, the more so the more GPUs"
        met = gains[0] > 0 and sorted(gains) == gains
        yield Trend(what=what, shown=ahead, met=met)
        for system, seconds in zip(OURS, (axonn, samo), strict=True):
            yield falling(f"{name}: {system} is faster on more GPUs", seconds, "s")


def state(numel: int, pruned: float) -> float:
    """Return the strategy's bytes of parameters, gradients and optimiser on one rank."""
    tensor = Tensor(name="parameters", shape=(numel,), dtype="float16")
    net = Net(name="parameters", layers=(Layer(name="all", tensors=(tensor,)),))
    alone = resized(machines.load("summit"), 1, 1)
    return memory(pipelined(net, alone, "samo", METHOD, stages=1, pruned=pruned)).total


def _memory() -> Iterator[PublishedRow]:
    """Yield bytes of state, dense and with a share of the parameters kept."""
    numel = 10**9
    for pruned, published in ((0.8, 66.0), (0.9, 78.0)):
        yield PublishedRow(
            group="state saved",
            what=f"{pruned:.0%} pruned",
            inputs="20 B per parameter, 2 + 24 (1 - p) B",
            unit="%",
            published=published,
            predicted=100 * (1 - state(numel, pruned) / state(numel, 0.0)),
            bar=FORMULA,
        )
    yield PublishedRow(
        group="pruned share from which it saves",
        what="SAMO",
        inputs="the same",
        unit="",
        published=0.25,
        predicted=root(lambda pruned: state(numel, 0.0) - state(numel, pruned), 0.01, 0.9),
        bar=FORMULA,
    )
    for system, derived in (("dense", 54.0), ("SAMO", 11.9)):
        yield PublishedRow(
            group=f"memory of {SHOWN}",
            what=f"state, {system}",
            inputs="2.7e9 parameters" + (", 90 % pruned" if system == "SAMO" else ""),
            unit="GB",
            derived=derived,
            predicted=state(2_700_000_000, PRUNED if system == "SAMO" else 0.0) / 1e9,
            bar=FORMULA,
            note="the paper's formula",
        )
    yield from _whole_memory()


def _whole_memory() -> Iterator[PublishedRow]:
    """Yield the memory of all stages of 2.7B."""
    for system, published in zip(OURS, (80.16, 20.28), strict=True):
        stages = depth(SHOWN, system)
        yield PublishedRow(
            group=f"memory of {SHOWN}",
            what=f"all, {system}",
            inputs=f"G_inter {stages}, 15 GB each",
            unit="GB",
            published=published,
            predicted=_whole(system, stages) / 1e9,
            inferred=_deeper(lambda x, system=system: _whole(system, x) / 1e9, SHOWN, system),  # type: ignore[misc]
            note="the rank that needs most, times G_inter, without buffers of libraries",
            cause=BUFFERS,
        )


def _whole(system: str, stages: int) -> float:
    """Return the bytes of all stages of a pipeline of 2.7B."""
    return stages * memory(plan_of(SHOWN, system, 128, stages)).total


def _deeper(value: Callable[[int], float], name: str, system: str) -> tuple[Otherwise, ...]:
    """Return the inferred depth with the result under twice the depth."""
    return (
        Otherwise(
            inferred=DEPTHS,
            instead="twice the depth",
            predicted=value(2 * depth(name, system)),
        ),
    )


def _parts() -> Iterator[PublishedRow]:
    """Yield the parts of a batch's time: 2.7B on 128 GPUs."""
    for number, system in enumerate(OURS):
        found, twice = (batch(SHOWN, system, 128, k * depth(SHOWN, system)) for k in (1, 2))
        ours = {
            "compute": (found.compute, twice.compute),
            "point-to-point": (found.messages, twice.messages),
            "bubble": (found.bubble, twice.bubble),
            "collective": (found.collective, twice.collective),
        }
        for part, printed in PARTS.items():
            predicted, other = ours.get(part, (None, None))
            deeper = Otherwise(inferred=DEPTHS, instead="twice the depth", predicted=other)
            yield PublishedRow(
                group=f"parts of a batch of {SHOWN}, 128 GPUs",
                what=f"{system}, {part}",
                inputs=f"G_inter {depth(SHOWN, system)}",
                unit="s",
                published=printed[number],
                predicted=predicted,
                inferred=(deeper,) if part in ours else (),
                note=PLACES if part in ours else PUBLISHED_ONLY,
                cause=WAITING,
            )


def _batch(name: str) -> str:
    return f"batch of {name}"


def _batches(name: str) -> Iterator[PublishedRow]:
    model, most = MODELS[name], max(BATCHES[name])  # the cheapest to simulate
    for number, system in enumerate(SYSTEMS):
        for gpus, printed in BATCHES[name].items():
            inferred: tuple[Otherwise, ...] = ()
            predicted = ruled(name, system, gpus).seconds
            if gpus == most:
                inferred = _deeper(_seconds(name, system, gpus), name, system)
                inferred += _shared(name, gpus) if system == DEEPSPEED else ()
            yield PublishedRow(
                group=_batch(name),
                what=f"{system}, {gpus} GPUs",
                inputs=f"{model.batch} sequences, G_inter {depth(name, system)}",
                unit="s",
                published=printed[number],
                predicted=predicted,
                inferred=inferred,
                note=PLACES,
                cause=SLOW_SUM if predicted > printed[number] else CAUSES[system],
            )


def _shared(name: str, gpus: int) -> tuple[Otherwise, ...]:
    """Return a batch of DeepSpeed-3D whose layers are split among ranks of a node."""
    plan = deepspeed(name, filled(machines.load("summit"), gpus), depth(name, DEEPSPEED), tensor=2)
    return (
        Otherwise(
            inferred="no ranks share a layer; ranks are dealt out to nodes in turn",
            instead="two neighbours share each layer; nodes are filled one after another",
            predicted=simulated(plan).seconds,
        ),
    )


def _seconds(name: str, system: str, gpus: int) -> Callable[[int], float]:
    return lambda stages: batch(name, system, gpus, stages).seconds


def _savings() -> Iterator[PublishedRow]:
    """Yield the abstract's numbers: shares of time and memory saved on 2.7B."""
    old, new, *others = (ruled(SHOWN, system, 512) for system in SYSTEMS)
    moved = [found.messages + found.collective for found in (old, new)]
    whole = [_whole(system, depth(SHOWN, system)) for system in OURS]
    saved = [1 - new.seconds / other.seconds for other in (old, *others)]
    for what, published, predicted, note, cause in (
        ("batch time, 512 GPUs, to AxoNN", 34.0, saved[0], DEPTHS, DIFFERENCE),
        ("batch time, 512 GPUs, to DeepSpeed-3D", 32.0, saved[1], DEPTHS, CAUSES[DEEPSPEED]),
        ("batch time, 512 GPUs, to Sputnik", 46.0, saved[2], DEPTHS, CAUSES[SPUTNIK]),
        (
            "communication, 512 GPUs, to AxoNN",
            40.0,
            1 - moved[1] / moved[0],
            f"{DEPTHS}; messages that no compute hides, and collectives",
            WAITING,
        ),
        ("memory", 74.0, 1 - whole[1] / whole[0], DEPTHS, BUFFERS),
    ):
        yield PublishedRow(
            group="saved on 2.7B, (old - new) / old",
            what=what,
            inputs="90 % pruned",
            unit="%",
            published=published,
            predicted=100 * predicted,
            note=note,
            cause=cause,
        )


def _packing() -> Iterator[PublishedRow]:
    """Yield the cost of compressing each microbatch's gradients."""
    shares = [_packed(gpus) for gpus in BATCHES[SHOWN]]
    for what, published, predicted in (("least", 8.0, min(shares)), ("most", 12.0, max(shares))):
        yield PublishedRow(
            group="packing, of a batch",
            what=what,
            inputs=f"{SHOWN}, 64 to 512 GPUs",
            unit="%",
            published=published,
            predicted=100 * predicted,
            cause=PACKED_SLOWLY,
            note="bytes at the memory's bandwidth; a real gather is slower",
        )


def _packed(gpus: int) -> float:
    """Return the share of a batch that the largest stage spends on packing."""
    plan = plan_of(SHOWN, "SAMO", gpus, depth(SHOWN, "SAMO"))
    m = int(plan.params["microbatches"])
    roles = STRATEGIES["samo"].lower(plan, 0, {}).roles
    spent = [sum(op.seconds for op in r.ops if op.kind is Kind.COMPUTE) for r in roles]
    layers = [
        m * (2 * stage.forward + stage.backward) for stage in grid(plan, plan.params)
    ]  # with recomputation
    extra = max(all_ - own for all_, own in zip(spent, layers, strict=True))
    return extra / ruled(SHOWN, "SAMO", gpus).seconds


PAPERS.add("samo")(Paper(SOURCE, rows, trends))
