"""Megatron-LM on A100: Narayanan et al., SC 2021, Korthikanti et al., MLSys 2023, and MT-NLG."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean, median
from typing import NamedTuple

from commsched.cost.price import method_seconds
from commsched.exchange.registry import find_method
from commsched.lab.reproduce.paper import PAPERS, Otherwise, Paper, PublishedRow, Trend, below
from commsched.lab.reproduce.training_steps import gridded
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net.generate.megatron import megatron
from commsched.net.graph import Layer
from commsched.plan.model import Plan
from commsched.simulate.engine import simulate

SOURCE = (
    "Narayanan et al., 'Efficient large-scale language model training on GPU clusters using"
    " Megatron-LM', SC 2021, table 1; Korthikanti et al., 'Reducing activation recomputation in"
    " large transformer models', MLSys 2023, table 5; Smith et al., 'Using DeepSpeed and Megatron"
    " to train Megatron-Turing NLG 530B', 2022, section 2.4; table 1 checked against the authors'"
    " script (NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh, commit 79a3bb6: sizes, degrees,"
    " batches; it states microbatches and interleaving), not its rates; table 5 against Calculon's"
    " validation (calculon-ai/calculon, commit caa4b11: all numbers); kernels that add gradients"
    " and update, and sums that hide behind products: the same commit of Megatron-LM; machine:"
    " dgx-a100"
)
SEQUENCE, VOCABULARY = 2048, 51200
MEDIAN, WORST = 0.10, 0.20  # bars of all rows together
# Calculon on table 5 of MLSys 2023: `calculon llm-validation`, commit caa4b11.
CALCULON_MEAN, CALCULON_WORST = 0.0365, 0.0887
RECOMPUTED = (
    "activations computed again: all, and selective with sequence parallelism; sums of backward"
    " hide behind products, as by default from March 2022 on"
)
PLAIN = "one stage on a rank, without interleaving"
BANDWIDTH = "memory at 1,118 GB/s, as a published dropout kernel of an A100 reaches"
# B of memory traffic per parameter, with float16 parameters and gradients. A microbatch's gradient
# is added to the sum: two reads, a write. The update zeroes gradients (2), copies them to
# float32 (6), unscales them and looks for infinity (8), takes their norm (4), does Adam's step (28)
# and copies the parameters back (6); scaling by clipping, for large norms, is left out.
# Source: NVIDIA/Megatron-LM, commit 79a3bb6, examples/sc21/CONFIG.sh (--fp16, --clip-grad),
# megatron/model/distributed.py, megatron/optimizer/optimizer.py and clip_grads.py.
ACCUMULATED, UPDATE = 6.0, 54.0
SHEET = 2039e9  # B/s of an A100's memory by its data sheet
CAUSE = (
    "kernels start without gaps here, sends between stages are not waited for, what crosses a stage"
    " in parts is put together for nothing, and products of the nearest measured shape stand for"
    " all"
)


DEEPSPEED = (
    "it ran on DeepSpeed's pipeline engine, which is not modelled; the same net on as many GPUs"
    " takes a quarter less in table 1 of SC 2021"
)
H100 = "Megatron-LM, README, strong scaling of a GPT of 175B on H100, batch 1152"
UNSTATED = "its degrees are not stated, so that nothing here predicts it"


class MegatronRun(NamedTuple):
    """A net, its degrees of parallelism, and one of its steps."""

    name: str
    blocks: int
    hidden: int
    heads: int
    tensor: int
    stages: int
    gpus: int
    batch: int  # sequences of a step
    micro: int = 1  # sequences of a microbatch
    full: bool = True  # recompute all activations; False: those of attention, sequence parallel
    chunks: int = 1  # stages on a rank, interleaved
    hides: bool = False  # sums of backward hide behind products, as since 2022

    @property
    def replicas(self) -> int:
        return self.gpus // (self.tensor * self.stages)


class Law(NamedTuple):
    """Seconds of a step of `fewest` microbatches, and of each further microbatch."""

    fewest: int
    seconds: float
    each: float


TABLE5 = {  # s with full recomputation, and with the paper's
    MegatronRun("22B", 48, 6144, 64, 8, 1, 8, 4, 4): (1.42, 1.10),
    MegatronRun("175B", 96, 12288, 96, 8, 8, 64, 64, chunks=3): (18.13, 13.75),
    MegatronRun("530B", 105, 20480, 128, 8, 35, 280, 280, chunks=3): (49.05, 37.83),
    MegatronRun("1T", 128, 25600, 160, 8, 64, 512, 512): (94.42, 71.49),
}
TABLE1 = {  # 1e12 operations per second and GPU
    MegatronRun("1.7B", 24, 2304, 24, 1, 1, 32, 512, 16): 137.0,
    MegatronRun("3.6B", 30, 3072, 32, 2, 1, 64, 512, 16): 138.0,
    MegatronRun("7.5B", 36, 4096, 32, 4, 1, 128, 512, 16): 142.0,
    MegatronRun("18.4B", 40, 6144, 48, 8, 1, 256, 1024, 8): 135.0,
    MegatronRun("39.1B", 48, 8192, 64, 8, 2, 512, 1536, 4): 138.0,
    MegatronRun("76.1B", 60, 10240, 80, 8, 4, 1024, 1792, 2, chunks=3): 140.0,
    MegatronRun("145.6B", 80, 12288, 96, 8, 8, 1536, 2304, 2, chunks=2): 148.0,
    MegatronRun("310.1B", 96, 16384, 128, 8, 16, 1920, 2160, chunks=2): 155.0,
    MegatronRun("529.6B", 105, 20480, 128, 8, 35, 2520, 2520, chunks=3): 163.0,
    MegatronRun("1008B", 128, 25600, 160, 8, 64, 3072, 3072): 163.0,
}
MT_NLG = {  # s
    MegatronRun("530B", 105, 20480, 128, 8, 35, 2240, 1920): 60.1,
    MegatronRun("530B", 105, 20480, 128, 8, 35, 2800, 1920): 50.2,
    MegatronRun("530B", 105, 20480, 128, 8, 35, 3360, 1920): 44.4,
}


def rows() -> Iterator[PublishedRow]:
    """Yield all numbers of the three papers' tables of end-to-end steps."""
    for run, printed in TABLE5.items():
        for full, published in zip((True, False), printed, strict=True):
            this = run._replace(full=full, hides=True)
            yield PublishedRow(
                group="step, MLSys 2023, table 5",
                what=f"{run.name}, {'full' if full else 'selective, sequence parallel'}",
                inputs=_inputs(run),
                unit="s",
                published=published,
                predicted=_seconds(this),
                inferred=(*_instead(this, _seconds), _fused(this)),
                note=RECOMPUTED,
                cause=CAUSE,
            )
    for run, published in TABLE1.items():
        yield PublishedRow(
            group="rate of a GPU, SC 2021, table 1",
            what=f"{run.name}, {run.gpus} GPUs",
            inputs=_inputs(run),
            unit="Tflop/s",
            published=published,
            predicted=_rate(run),
            inferred=_instead(run, _rate),
            note="operations by the paper's equation 3, all activations computed again",
            cause=CAUSE,
        )
    yield from _others()


def _others() -> Iterator[PublishedRow]:
    """Yield the steps of MT-NLG, and shares of an H100's peak that lack their degrees."""
    for run, published in MT_NLG.items():
        yield PublishedRow(
            group="step, MT-NLG, section 2.4",
            what=f"{run.name}, {run.gpus} GPUs",
            inputs=_inputs(run),
            unit="s",
            published=published,
            predicted=_seconds(run),
            inferred=_instead(run, _seconds),
            note="all activations computed again; assumption: microbatch of 1, no interleaving",
            cause=DEEPSPEED,
        )
    for gpus, published in ((96, 47.0), (4608, 42.0)):
        yield PublishedRow(
            group="share of an H100's peak",
            what=f"175B, {gpus} GPUs",
            inputs=H100,
            unit="%",
            published=published,
            note=UNSTATED,
        )


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check the bars of all rows together, and Calculon's mean on its own."""
    errors = [abs(row.error) for row in found if row.error is not None]
    table5 = [abs(row.error) for row in found if row.error is not None and "table 5" in row.group]
    yield below("median error, %", 100 * median(errors), 100 * MEDIAN)
    for what, value, limit in (
        ("largest error, %", max(errors), WORST),
        ("mean error on table 5 of MLSys 2023, below Calculon's, %", mean(table5), CALCULON_MEAN),
        ("largest error there, below Calculon's, %", max(table5), CALCULON_WORST),
    ):
        yield below(what, 100 * value, 100 * limit, required=False)


def _inputs(run: MegatronRun) -> str:
    return (
        f"tensor {run.tensor}, pipeline {run.stages}, data {run.replicas}, batch {run.batch},"
        f" microbatch {run.micro}{f', {run.chunks} stages on a rank' if run.chunks > 1 else ''}"
    )


def _instead(
    run: MegatronRun, result: Callable[[MegatronRun, float], float]
) -> tuple[Otherwise, ...]:
    """Return inputs that the papers do not state, and the results under their alternatives."""
    sheet = Otherwise(
        inferred=BANDWIDTH,
        instead="2,039 GB/s, the data sheet's",
        predicted=result(run, SHEET),
    )
    if run.chunks == 1:
        return (sheet,)
    plain = run._replace(chunks=1)
    stages = Otherwise(
        inferred="interleaved stages, as many on a rank as the configuration of its source says",
        instead=PLAIN,
        predicted=result(plain, 0.0),
    )
    return sheet, stages


def _fused(run: MegatronRun) -> Otherwise:
    """Return a step whose gradients are added within the product that makes them."""
    return Otherwise(
        inferred="float16, whose gradients of microbatches a kernel of its own adds",
        instead="added in the product that makes them, as Megatron-LM can for bfloat16",
        predicted=_seconds(run, accumulated=0.0),
    )


def _rate(run: MegatronRun, bandwidth: float = 0.0) -> float:
    """Return 1e12 operations per second and GPU.

        F = 96 B s l h^2 (1 + s / (6 h) + V / (16 l h))

    Source: Narayanan et al., SC 2021, equation 3. Holds for full recomputation of the forward.
    """
    s, h, layers = SEQUENCE, run.hidden, run.blocks
    work = 96.0 * run.batch * s * layers * h * h
    work *= 1 + s / (6 * h) + VOCABULARY / (16 * layers * h)
    return work / _seconds(run, bandwidth) / run.gpus / 1e12


def _seconds(run: MegatronRun, bandwidth: float = 0.0, accumulated: float = ACCUMULATED) -> float:
    """Return the seconds of a step; bandwidth [B/s]: of the memory, 0: the machine's.

        t = t(n) + (m - n) e

    m = microbatches; e [s] = seconds of each microbatch beyond n, see `Law`.
    """
    m = run.batch // (run.replicas * run.micro)
    law = _law(run._replace(batch=0), bandwidth, accumulated)
    return law.seconds + (m - law.fewest) * law.each


@cache
def _law(run: MegatronRun, bandwidth: float, accumulated: float) -> Law:
    """Simulate a step with a microbatch per rank of the pipeline, and a step with more.

    Without jitter every further microbatch takes the same time, as a test asserts. Interleaved
    stages need twice as many, or a larger multiple.
    """
    fewest = run.stages * (2 if run.chunks > 1 else 1)
    more = run.stages if run.chunks > 1 else 2
    first, longer = (simulated_step(run, fewest + m, bandwidth, accumulated) for m in (0, more))
    return Law(fewest, first, (longer - first) / more)


def simulated_step(
    run: MegatronRun, microbatches: int, bandwidth: float = 0.0, accumulated: float = ACCUMULATED
) -> float:
    """Simulate a step with `microbatches` per replica, on all replicas; return seconds."""
    machine = machines.load("dgx-a100")
    if bandwidth:
        machine = replace(machine, device=replace(machine.device, bandwidth=bandwidth))
    net = megatron(
        run.name,
        layers=run.blocks,
        hidden=run.hidden,
        heads=run.heads,
        sequence=SEQUENCE,
        vocabulary=VOCABULARY,
        batch=run.micro,
        scattered=run.tensor,
        sequence_parallel=not run.full,
        selective=not run.full,
        accumulated=accumulated,
    )
    plan = gridded(
        net,
        resized(machine, run.gpus // 8, 8),
        tensor=run.tensor,
        pipeline=run.stages,
        microbatches=microbatches,
        interleave=run.chunks,
        recompute=run.blocks // (run.stages * run.chunks) if run.full else 0,
        optimizer="adam",
    )
    seconds = UPDATE * plan.net.numel / plan.machine.device.bandwidth
    layers = plan.net.layers
    if run.hides:
        layers = tuple(_hiding(plan, layer, 1.0 if run.full else 0.5) for layer in layers)
    return simulate(replace(plan, net=replace(plan.net, layers=layers, optimizer=seconds)), 1).end


def _hiding(plan: Plan, layer: Layer, share: float) -> Layer:
    """Hide a share of the sum after a layer's backward behind the weights' gradient's product.

    The timeline shows a shorter product. share: 1, or half if tokens are split among ranks: then
    the sum is a reduce-scatter here and an all-gather elsewhere, which nothing hides.
    Source: NVIDIA/Megatron-LM, commit 79a3bb6, megatron/mpu/layers.py, on by default since March
    2022. Holds for products cut by columns; half of their backward is the weights' gradient.
    """
    if layer.cut != "columns":
        return layer
    launch = next(x for x in plan.launches if x.activations == layer.summed)
    method, group = find_method(launch.method), plan.group(launch)
    summed = method_seconds(method, plan.spec(launch), plan.machine, group)
    forward, backward = plan.net.seconds(layer, plan.machine.device)
    return replace(layer, forward=forward, backward=backward - min(share * summed, backward / 2))


PAPERS.add("megatron")(Paper(SOURCE, rows, trends))
