"""Fully sharded data parallel on A100 and H100: throughputs of MPT by PyTorch's FSDP."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import median
from typing import NamedTuple

from commsched.lab.reproduce.paper import PAPERS, Otherwise, Paper, PublishedRow, Trend, below
from commsched.lab.reproduce.training_steps import fully_sharded
from commsched.machine import file as machines
from commsched.machine.model import Machine, resized
from commsched.net.generate.megatron import megatron
from commsched.net.graph import Layer, Net
from commsched.planner.search.timing import iteration

SOURCE = (
    "MosaicML, MPT training benchmarks (mosaicml/llm-foundry, scripts/train/benchmarking/README.md,"
    " commit 8c8dd48): all rows of 2,048 tokens and 1 billion parameters or more of its tables of"
    " H100 (128 GPUs or more), A100 80 GB, and A100 40 GB (without accumulated gradients); sizes:"
    " scripts/train/yamls/pretrain, whose parameters are the printed ones; machines: h100-8x400,"
    " dgx-a100"
)
SEQUENCE, VOCABULARY, WIDTH = 2048, 50368, 128  # width: of a head of every net
SHEETS = {  # B/s of memory by the data sheets
    "H100, 80 GB": 3350e9,
    "A100, 80 GB": 2039e9,
    "A100, 40 GB": 1555e9,
}
REACHED = 1118 / 2039  # share of the data sheet that a dropout reaches, see machine dgx-a100
# 1e12 operations per second of an H100 by (rows, inner, columns) of torch.nn.functional.linear in
# bfloat16: the median of measurements by three frameworks.
MEASURED = (
    (16384, 2048, 2048, 752.7),
    (16384, 2048, 6144, 785.8),
    (16384, 2048, 8192, 756.4),
    (16384, 8192, 2048, 812.7),
    (16384, 2048, 51200, 749.7),
    (16384, 2560, 2560, 774.0),
    (16384, 2560, 7168, 766.0),
    (16384, 2560, 10240, 784.1),
    (16384, 10240, 2560, 755.0),
    (16384, 2560, 51200, 740.6),
    (16384, 4096, 4096, 743.2),
    (16384, 4096, 12288, 738.4),
    (16384, 4096, 16384, 732.3),
    (16384, 16384, 4096, 739.9),
    (16384, 4096, 51200, 728.3),
    (16384, 5120, 5120, 688.6),
    (16384, 5120, 16384, 810.1),
    (16384, 16384, 5120, 743.5),
    (16384, 5120, 51200, 705.7),
    (16384, 7168, 7168, 732.2),
    (16384, 7168, 16384, 724.3),
    (16384, 16384, 7168, 733.3),
    (16384, 7168, 51200, 747.4),
    (16384, 8192, 8192, 707.4),
    (16384, 8192, 16384, 727.7),
    (16384, 16384, 8192, 723.2),
    (16384, 8192, 51200, 743.2),
)
ATTENTION = 335.0  # 1e12 operations per second of the two products of attention on an H100
PRODUCTS = (
    "products of an H100 by their shape, with libraries of 2026 (NVIDIA aiconfigurator-core 0.12.0,"
    " systems/data/h100_sxm/gemm: median of sglang 0.5.14, trtllm 1.3.0rc20 and vllm 0.24.0), those"
    " of attention at 335 Tflop/s, the most that Dao found on an H100 (FlashAttention-2, ICLR 2024)"
)
OTHER = 518.6  # 1e12 operations per second
SLOWER = (
    "518.6 Tflop/s for all products, which a user of cuBLAS 12.4 measured (pranjalssh/fast.cu,"
    " issue 13)"
)
MEMORY = "memory at 55 % of the data sheet, as a published dropout kernel of an A100 reaches"
CAUSES = {
    "H100, 80 GB": "products run as fast here as alone and for a moment, with libraries of 2026:"
    " no exchange beside them and no limit of power slows them, and kernels start without gaps",
    "A100, 80 GB": "kernels start without gaps here",
    "A100, 40 GB": "kernels start without gaps here, and its libraries are older than those of the"
    " rows of A100 with 80 GB, which train 3B in a tenth less time",
}
SIZES = {  # blocks, hidden, heads
    "1B": (24, 2048, 16),
    "3B": (32, 2560, 20),
    "7B": (32, 4096, 32),
    "13B": (40, 5120, 40),
    "30B": (48, 7168, 56),
    "70B": (80, 8192, 64),
}


class FsdpRun(NamedTuple):
    """A net on GPUs: samples of a microbatch; what is sharded, recomputed and sent."""

    net: str
    gpus: int
    micro: int
    again: bool  # activations are recomputed
    parameters: bool = True  # parameters are sharded between forward and backward, too
    half: bool = False  # gradients are summed in 16 bits


TABLES: dict[str, dict[FsdpRun, float]] = {  # tokens per second and GPU
    "H100, 80 GB": {
        FsdpRun("70B", 512, 8, True): 1007.0,
        FsdpRun("70B", 256, 8, True): 1035.0,
        FsdpRun("70B", 128, 8, True): 1058.0,
        FsdpRun("30B", 512, 8, True): 2115.0,
        FsdpRun("30B", 256, 8, True): 2148.0,
        FsdpRun("30B", 128, 8, True): 2199.0,
        FsdpRun("13B", 512, 16, True): 4952.0,
        FsdpRun("13B", 256, 16, True): 4989.0,
        FsdpRun("13B", 128, 16, True): 5080.0,
        FsdpRun("7B", 512, 6, False): 9670.0,
        FsdpRun("7B", 256, 6, False): 10119.0,
        FsdpRun("7B", 128, 6, False): 10475.0,
        FsdpRun("3B", 512, 8, False, parameters=False): 21664.0,
        FsdpRun("3B", 256, 8, False, parameters=False): 22772.0,
        FsdpRun("3B", 128, 8, False, parameters=False): 23422.0,
        FsdpRun("1B", 512, 12, False, parameters=False): 39837.0,
        FsdpRun("1B", 256, 12, False, parameters=False): 42555.0,
        FsdpRun("1B", 128, 12, False, parameters=False): 44123.0,
    },
    "A100, 80 GB": {
        FsdpRun("70B", 64, 8, True, half=True): 410.0,
        FsdpRun("70B", 32, 2, True, half=True): 373.0,
        FsdpRun("30B", 8, 3, True): 916.0,
        FsdpRun("13B", 8, 2, False): 2262.0,
        FsdpRun("7B", 8, 6, False): 4641.0,
        FsdpRun("3B", 8, 10, False): 10811.0,
        FsdpRun("1B", 8, 14, False): 20513.0,
    },
    "A100, 40 GB": {
        FsdpRun("70B", 128, 4, True, half=True): 376.0,
        FsdpRun("70B", 64, 2, True, half=True): 276.0,
        FsdpRun("30B", 128, 6, True, half=True): 865.0,
        FsdpRun("30B", 32, 4, True, half=True): 857.0,
        FsdpRun("13B", 128, 16, True, half=True): 1972.0,
        FsdpRun("13B", 64, 16, True, half=True): 1976.0,
        FsdpRun("13B", 32, 14, True, half=True): 1998.0,
        FsdpRun("13B", 16, 10, True, half=True): 1993.0,
        FsdpRun("7B", 128, 18, True, half=True): 3623.0,
        FsdpRun("7B", 64, 18, True, half=True): 3665.0,
        FsdpRun("7B", 32, 18, True, half=True): 3725.0,
        FsdpRun("7B", 16, 16, True, half=True): 3645.0,
        FsdpRun("3B", 128, 6, False, half=True): 9538.0,
        FsdpRun("3B", 64, 6, False, half=True): 9736.0,
        FsdpRun("3B", 32, 6, False, half=True): 9914.0,
        FsdpRun("3B", 16, 5, False, half=True): 9750.0,
        FsdpRun("1B", 128, 10, False, half=True): 18647.0,
        FsdpRun("1B", 64, 10, False, half=True): 19001.0,
        FsdpRun("1B", 32, 10, False, half=True): 15555.0,
        FsdpRun("1B", 16, 8, False, half=True): 19085.0,
    },
}


def rows() -> Iterator[PublishedRow]:
    """Yield all rows of the tables that the source names."""
    for group, printed in TABLES.items():
        for run, published in printed.items():
            yield PublishedRow(
                group=f"{group}: tokens of a GPU a second",
                what=f"{run.net}, {run.gpus} GPUs",
                inputs=_inputs(run),
                unit="1/s",
                published=published,
                predicted=_tokens(run, group),
                inferred=tuple(_instead(run, group)),
                note="gradients that are accumulated are exchanged after every microbatch",
                cause=CAUSES[group],
            )


def _inputs(run: FsdpRun) -> str:
    return (
        f"microbatch {run.micro}, activations {'repeated' if run.again else 'kept'},"
        f" {'all' if run.parameters else 'gradients and optimiser state'} sharded,"
        f" gradients of {2 if run.half else 4} B"
    )


def _instead(run: FsdpRun, device: str) -> Iterator[Otherwise]:
    """Yield the inferred inputs of a row, and the result under their alternatives."""
    sheet = SHEETS[device]
    yield Otherwise(
        inferred=MEMORY,
        instead="at the data sheet's bandwidth",
        predicted=_tokens(run, device, memory=sheet),
    )
    if device.startswith("H100"):
        slower = _tokens(run, device, products=OTHER)
        yield Otherwise(inferred=PRODUCTS, instead=SLOWER, predicted=slower)


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Report median and largest errors by table; for H100 also those with slower products."""
    errors: dict[str, list[float]] = {}
    for row in found:
        group = row.group.partition(":")[0]
        errors.setdefault(group, []).append(abs(row.error or 0.0))
        for each in row.inferred:
            if each.inferred == PRODUCTS and each.predicted and row.published:
                other = f"{group}, products at {OTHER:g} Tflop/s"
                errors.setdefault(other, []).append(abs(each.predicted / row.published - 1.0))
    for name, some in errors.items():
        for what, value in (("median", median(some)), ("largest", max(some))):
            yield below(f"{name}: {what} error, %", 100 * value, 15.0, required=False)


@cache
def _tokens(run: FsdpRun, device: str, memory: float = 0.0, products: float = 0.0) -> float:
    """Return tokens per second and GPU.

    memory [B/s]: another bandwidth; products [1e12 / s]: one rate for all products of an H100.
    0 keeps the machine's measured values.
    """
    machine = _machine(device, run.gpus, memory or REACHED * SHEETS[device], products)
    plan = fully_sharded(_net(run), machine, "fp16" if run.half else "dense", again=run.parameters)
    return run.micro * SEQUENCE / iteration(plan)


def _machine(device: str, gpus: int, memory: float, products: float) -> Machine:
    a100 = machines.load("dgx-a100")
    machine = a100 if device.startswith("A100") else machines.load("h100-8x400")
    own = replace(machine.device, bandwidth=memory)
    if device.startswith("H100"):
        own = replace(own, gather=a100.device.gather, codecs=a100.device.codecs)
        if products:
            own = replace(own, efficiency=1e12 * products / own.flops)
        else:
            attention = ((SEQUENCE, WIDTH, SEQUENCE), (SEQUENCE, SEQUENCE, WIDTH))
            own = replace(own, matrices=(*MEASURED, *((*x, ATTENTION) for x in attention)))
    return resized(replace(machine, device=own), gpus // 8, 8)


def _net(run: FsdpRun) -> Net:
    blocks, hidden, heads = SIZES[run.net]
    net = megatron(
        run.net,
        layers=blocks,
        hidden=hidden,
        heads=heads,
        sequence=SEQUENCE,
        vocabulary=VOCABULARY,
        batch=run.micro,
        flash=True,
    )
    return replace(net, layers=tuple(map(_repeated, net.layers))) if run.again else net


def _repeated(layer: Layer) -> Layer:
    """Return a layer of a block whose backward recomputes its forward."""
    if not layer.block:
        return layer
    return replace(
        layer,
        backward_flops=layer.backward_flops + layer.forward_flops,
        backward_bytes=layer.backward_bytes + layer.forward_bytes,
    )


PAPERS.add("fsdp")(Paper(SOURCE, rows, trends))
