"""FFT gradient sparsification, Wang et al., HPDC 2020, on the P100 nodes of Comet."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from commsched.coding.registry import CODECS
from commsched.cost.price import price
from commsched.exchange.registry import find_method
from commsched.kernels import rangefloat
from commsched.kernels.bits import packed_bytes
from commsched.lab.reproduce.paper import (
    PAPERS,
    PUBLISHED_ONLY,
    Paper,
    PublishedRow,
    Trend,
    crossing,
    missing,
    predictions,
    root,
)
from commsched.lab.reproduce.training_steps import computing, in_turn
from commsched.machine import file as machines
from commsched.machine.model import Machine, resized
from commsched.net import file as nets
from commsched.net.bucket import BucketSpec
from commsched.net.graph import Net

SOURCE = (
    "Wang, Wu, Zhang, Chen, Bosilca, Herlihy & Fonseca, 'FFT-based gradient sparsification for the"
    " distributed training of deep neural networks', HPDC 2020, arXiv 1811.08596; machine: comet"
)
FORMULA, TIMES = 0.01, 0.10  # bars
CODEC, SHARE = "fft:0.15", 0.15
LANES = 4  # P100 of a Comet node
GATHERED = 62_500_000  # float32 elements of 250 MB

REDUCED = {  # ms on 16 P100
    "conv1": 0.49,
    "conv3": 1.65,
    "conv4": 2.37,
    "fc6": 68.0,
    "fc7": 30.3,
    "fc8": 7.45,
}
GATHERS = {8: 0.410, 16: 0.883, 24: 1.347, 32: 2.19}  # GPUs -> s
SIZES = {"alexnet": 250.0, "vgg16": 553.0, "resnet32": 6.0, "inception-v4": 170.0}  # MB
SHARES = {"alexnet": 64.0, "vgg16": 19.0, "resnet32": 44.0, "inception-v4": 33.0}  # %
METHODS = {"FFT": "fft:0.15", "Top-K": "topk:0.15", "QSGD": "qsgd:4", "TernGrad": "terngrad"}
FASTER = {  # than SGD, on 8 P100
    "alexnet": {"FFT": 2.26, "Top-K": 1.53, "QSGD": 1.73, "TernGrad": 1.81},
    "resnet32": {"FFT": 1.33, "Top-K": 1.12, "QSGD": 1.21, "TernGrad": 1.24},
}
TOP_1 = {  # %
    "alexnet": {"SGD": 56.52, "FFT": 56.61, "Top-K": 55.07, "QSGD": 53.54, "TernGrad": 52.86},
    "resnet32": {"SGD": 92.11, "FFT": 91.99, "Top-K": 90.31, "QSGD": 88.66, "TernGrad": 86.90},
}
STEP = (
    "no overlap; 15 % kept by Top-K, 4 bits of QSGD; batch and layer times of the net file;"
    " coding of all but FFT at the memory's rate; FFT and Top-K pay for error feedback, which the"
    " paper has not"
)


def rows() -> Iterator[PublishedRow]:
    """All numbers of the paper that were available."""
    comet = machines.load("comet")
    yield from _reduced(comet)
    yield from _gathered(comet)
    yield from _gains(comet)
    yield from _ratios()
    yield from _floats()
    yield from _left_behind()
    yield from _sizes()
    yield from _steps(resized(comet, 2, LANES))
    yield missing("speed-ups and accuracies", "VGG16, Inception-v4")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """The order of the four methods on both nets."""
    for net in FASTER:
        speeds = dict(zip(METHODS, predictions(found, _group(net)), strict=True))
        shown = ", ".join(f"{name} {x:.3g}" for name, x in speeds.items())
        order = speeds["TernGrad"] > speeds["QSGD"] > speeds["Top-K"]
        what = f"{net}: TernGrad is faster than QSGD, QSGD than Top-K"
        yield Trend(what=what, shown=shown, met=order)
        first = speeds["FFT"] == max(speeds.values())
        what = f"{net}: FFT is the fastest (it is priced at printed rates, others at the memory's)"
        yield Trend(what=what, shown=shown, met=first, required=False)


def _group(net: str) -> str:
    return f"speed-up over SGD, {net}"


def _reduced(comet: Machine) -> Iterator[PublishedRow]:
    """A ring all-reduce of one layer's weights on 16 GPUs."""
    tensors = nets.load("alexnet").tensors
    ring, group = find_method("ring+dense"), comet.everyone
    for layer, published in REDUCED.items():
        weight = tensors[f"{layer}.weight"]
        seconds = price(ring, BucketSpec.uniform(weight.numel), comet, group).exchange
        yield PublishedRow(
            group="all-reduce of a layer of AlexNet",
            what=layer,
            inputs=f"16 P100, {weight.nbytes / 1e6:.3g} MB",
            unit="ms",
            published=published,
            predicted=seconds * 1e3,
            bar=None if layer == "conv1" else TIMES,
            note="bound by latency, which the paper does not print" if layer == "conv1" else "",
        )


def _gathered(comet: Machine) -> Iterator[PublishedRow]:
    """A ring all-gather of 250 MB from each GPU."""
    gather = find_method("all-gather+dense")
    for gpus, published in GATHERS.items():
        on = resized(comet, gpus // LANES, LANES)
        spec = BucketSpec.uniform(GATHERED)
        yield PublishedRow(
            group="all-gather",
            what=f"{gpus} GPUs",
            inputs="250 MB from each",
            unit="s",
            published=published,
            predicted=price(gather, spec, on, on.everyone).exchange,
            bar=TIMES if gpus <= 24 else None,
            note="" if gpus <= 24 else "above the line that the smaller counts are on",
        )


def _hop(comet: Machine, rate: float, nbytes: float) -> float:
    """Return the seconds in which two ranks swap packets of `nbytes` over a link of `rate` B/s."""
    link = replace(comet.between, per_byte=1 / rate)
    pair = replace(resized(comet, 2, 1), between=link, nic=None)
    spec = BucketSpec.uniform(max(1, round(nbytes / 4)))
    return price(find_method("all-gather+dense"), spec, pair, pair.everyone).exchange


def _coding(comet: Machine) -> float:
    """Seconds to encode and decode a byte of values on a P100."""
    rate = CODECS[CODEC].rate(comet.device)
    return rate.encode + rate.decode


def _gains(comet: Machine) -> Iterator[PublishedRow]:
    """Yield the lowest ratio at which compression pays on a link, and the highest rate."""
    nbytes = 4e9  # large: the formula has no latency
    work = nbytes * _coding(comet)
    inputs = "passes 600 GB/s (4), FFT 71, packing 67, selection 30"
    for rate, published in ((10, 1.21), (32, 2.23)):
        dense = _hop(comet, rate / 8 * 1e9, nbytes)

        def saved(ratio: float, rate: int = rate, dense: float = dense) -> float:
            return dense - work - _hop(comet, rate / 8 * 1e9, nbytes / ratio)

        yield PublishedRow(
            group="ratio that pays",
            what=f"over a link of {rate} Gbit/s",
            inputs=inputs,
            unit="",
            published=published,
            predicted=root(saved, 1.0, 100.0),
            bar=FORMULA,
        )
    limit = root(lambda rate: _hop(comet, rate, nbytes) - work, 1e8, 1e11)
    yield PublishedRow(
        group="rate beyond which none pays",
        what="link",
        inputs=inputs,
        unit="Gbit/s",
        published=57.9,
        predicted=limit * 8e-9,
        bar=FORMULA,
    )


def _packet(numel: int) -> float:
    """Bytes of a packet of the codec."""
    whole = BucketSpec.uniform(numel)
    return float(CODECS[CODEC].nbytes(whole, np.zeros(1, np.int64), np.array([numel]), 1)[0])


def _ratios() -> Iterator[PublishedRow]:
    """Yield the compression ratio with and without the bitmap of kept values."""
    numel = 2**24
    packet, bins = _packet(numel), packed_bytes(numel // 2 + 1)
    for what, published, nbytes, note in (
        ("without the bitmap", 21.3, packet - bins, "as quoted"),
        ("bitmap of the bins", 16.0, packet, "as our packets are; the paper leaves it out"),
        ("bitmap of the elements", 12.8, packet - bins + packed_bytes(numel), "likewise"),
    ):
        yield PublishedRow(
            group="compression ratio",
            what=what,
            inputs="theta .85, 10 bits per part",
            unit="",
            published=published,
            predicted=4 * numel / nbytes,
            bar=FORMULA,
            note=note,
        )
    yield PublishedRow(
        group="ranks up to which it beats a ring",
        what="all-gather of packets",
        inputs="fewer bytes than a dense ring: n < 2 ratio",
        unit="ranks",
        published=2 * 16.0,
        predicted=_most_ranks(numel),
        bar=FORMULA,
    )


def _most_ranks(numel: int) -> float:
    """Return the ranks at which packets in an all-gather equal a dense ring in bytes."""
    comet, spec = machines.load("comet"), BucketSpec.uniform(numel)

    def more(ranks: int) -> float:
        on = resized(comet, ranks, 1)
        packets, dense = (
            price(find_method(name), spec, on, on.everyone, limit=0).sent
            for name in (f"all-gather+{CODEC}", "ring+dense")
        )
        return packets / dense - 1.0

    return crossing(more)


def _floats() -> Iterator[PublishedRow]:
    """The unit vectors of the range float."""
    small = rangefloat.from_least(8, 3, 0.125)
    code = small.encode(np.array([0.256], np.float32))
    up = rangefloat.up_to(8, 3, 1.0)
    for what, inputs, published, found in (
        ("code of 0.256", "8 bits, m = 3, eps = .125", 0b00001001, float(code[0])),
        ("value of 00001001", "8 bits, m = 3, eps = .125", 0.25, float(small.decode(code)[0])),
        ("eps", "8 bits, m = 3, largest 1", 1.9e-5, up.least),
    ):
        yield PublishedRow(
            group="range float",
            what=what,
            inputs=inputs,
            unit="",
            published=float(published),
            predicted=found,
            bar=FORMULA,
        )


def _left_behind() -> Iterator[PublishedRow]:
    """Yield the L2 norm that each selection drops, relative to the signal's."""
    numel = 2**18
    white = np.random.default_rng(0).standard_normal(numel).astype(np.float32)
    signals = {"white": white, "AR(1), .9": _correlated(white, 0.9)}
    printed = {"white": (0.752, 0.664), "AR(1), .9": (0.324, 0.665)}
    for name, signal in signals.items():
        for codec, published in zip((CODEC, f"topk:{SHARE}"), printed[name], strict=True):
            coded, back = CODECS[codec], np.empty_like(signal)
            coded.decode(coded.encode(signal.copy(), {}), back)
            yield PublishedRow(
                group="L2 norm left behind, of the signal's",
                what=f"{codec}, {name}",
                inputs=f"{numel:,} normal values, 15 % kept",
                unit="",
                published=published,
                predicted=float(np.linalg.norm(signal - back) / np.linalg.norm(signal)),
                bar=FORMULA,
                note="not printed in the paper; limits of large signals",
            )


def _correlated(noise: np.ndarray, factor: float) -> np.ndarray:
    """x_i = factor x_(i-1) + noise_i, started at rest: factor^k noise_(i-k), summed by doubling."""
    total, step, power = noise.astype(np.float64), 1, factor
    while power > 1e-12:
        total[step:] += power * total[:-step].copy()
        step, power = 2 * step, power * power
    return total.astype(np.float32)


def _sizes() -> Iterator[PublishedRow]:
    """Bytes of all gradients of a net."""
    for net, published in SIZES.items():
        graph = nets.load(net)
        known = net != "resnet32"
        yield PublishedRow(
            group="gradients",
            what=net,
            inputs=f"{graph.numel:,} float32",
            unit="MB",
            published=published,
            predicted=sum(tensor.nbytes for tensor in graph.tensors.values()) / 1e6,
            bar=FORMULA if known else None,
            note="" if known else "He et al.'s ResNet-32 has 464,154 parameters: another one?",
        )


def _steps(comet: Machine) -> Iterator[PublishedRow]:
    """Shares of communication, speed-ups and accuracies on 8 GPUs."""
    for net, published in SHARES.items():
        graph = nets.load(net)
        compute = computing(graph, comet)
        step = in_turn(graph, comet, "ring+dense")
        yield PublishedRow(
            group="communication, share of a step",
            what=net,
            inputs=f"8 P100, {_samples(graph)}, compute {compute * 1e3:.3g} ms",
            unit="%",
            published=published,
            predicted=100 * (1 - compute / step),
            inferred="8 GPUs; no overlap; batch and layer times of the net file",
        )
    for net, printed in FASTER.items():
        graph = nets.load(net)
        dense = in_turn(graph, comet, "ring+dense")
        for name, codec in METHODS.items():
            yield PublishedRow(
                group=_group(net),
                what=name,
                inputs=f"8 P100, all-gather of {codec}",
                unit="x",
                published=printed[name],
                predicted=dense / in_turn(graph, comet, f"all-gather+{codec}"),
                inferred=STEP,
            )
    for net, scores in TOP_1.items():
        for name, score in scores.items():
            yield PublishedRow(
                group=f"top-1 accuracy, {net}",
                what=name,
                inputs="8 P100",
                unit="%",
                published=score,
                note=f"{PUBLISHED_ONLY}: it takes training on the paper's data",
            )


def _samples(net: Net) -> str:
    return "batch not stated" if net.batch == 1 else f"{net.batch} samples each"


PAPERS.add("fft")(Paper(SOURCE, rows, trends))
