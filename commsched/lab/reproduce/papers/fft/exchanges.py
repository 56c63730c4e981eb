"""FFT on Comet: exchanges, the formulas of its coding, and the sizes of gradients."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commsched.coding.registry import CODECS
from commsched.cost.price import price
from commsched.exchange.registry import find_method
from commsched.kernels import rangefloat
from commsched.kernels.bits import packed_bytes
from commsched.lab.reproduce.paper import FORMULA, Otherwise, PublishedRow, crossing, root
from commsched.machine import file as machines
from commsched.machine.model import Machine, resized
from commsched.net import file as nets
from commsched.net.bucket import BucketSpec

CODEC, SHARE = "fft:0.15", 0.15
LANES = 4  # P100 of a Comet node
GATHERED = 62_500_000  # float32 elements of 250 MB
GATHER_RATE = 4.26e9  # B/s of the all-gather on 8 to 24 GPUs

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


def exchanges(comet: Machine) -> Iterator[PublishedRow]:
    """Yield all but the steps of a training."""
    yield from _reduced(comet)
    yield from _gathered(comet)
    yield from _gains(comet)
    yield from _ratios()
    yield from _floats()
    yield from _left_behind()
    yield from _sizes()


def _reduced(comet: Machine) -> Iterator[PublishedRow]:
    """Yield a ring all-reduce of one layer's weights on 16 GPUs."""
    tensors = nets.load("alexnet").tensors
    other = _at(comet, GATHER_RATE)
    for layer, published in REDUCED.items():
        weight = tensors[f"{layer}.weight"]
        seconds, instead = (_ring(weight.numel, on) for on in (other, comet))
        yield PublishedRow(
            group="all-reduce of a layer of AlexNet",
            what=layer,
            inputs=f"16 P100, {weight.nbytes / 1e6:.3g} MB",
            unit="ms",
            published=published,
            predicted=seconds * 1e3,
            inferred=(
                Otherwise(
                    inferred="links of 4.26 GB/s, by the all-gather on 8 to 24 GPUs",
                    instead="4.15 GB/s, by these all-reduces themselves",
                    predicted=instead * 1e3,
                ),
            ),
            cause="0.14 MB wait for 30 messages, whose latency the paper does not print"
            if layer == "conv1"
            else "",
        )


def _at(comet: Machine, rate: float) -> Machine:
    """Return the machine with links of `rate` B/s between its nodes."""
    return replace(comet, between=replace(comet.between, per_byte=1 / rate))


def _ring(numel: int, on: Machine) -> float:
    return price(find_method("ring+dense"), BucketSpec.uniform(numel), on, on.everyone).exchange


def _gathered(comet: Machine) -> Iterator[PublishedRow]:
    """Yield a ring all-gather of 250 MB from each GPU."""
    gather, spec = find_method("all-gather+dense"), BucketSpec.uniform(GATHERED)
    for gpus, published in GATHERS.items():
        on = resized(comet, gpus // LANES, LANES)
        seconds, instead = (
            price(gather, spec, each, each.everyone).exchange for each in (on, _at(on, GATHER_RATE))
        )
        yield PublishedRow(
            group="all-gather",
            what=f"{gpus} GPUs",
            inputs="250 MB from each",
            unit="s",
            published=published,
            predicted=seconds,
            inferred=(
                Otherwise(
                    inferred="links of 4.15 GB/s, by the all-reduce of AlexNet's layers",
                    instead="4.26 GB/s, by these all-gathers themselves",
                    predicted=instead,
                ),
            ),
        )


def _hop(comet: Machine, rate: float, nbytes: float) -> float:
    """Return the seconds in which two ranks swap packets of `nbytes` over a link of `rate` B/s."""
    link = replace(comet.between, per_byte=1 / rate)
    pair = replace(resized(comet, 2, 1), between=link, nic=None)
    spec = BucketSpec.uniform(max(1, round(nbytes / 4)))
    return price(find_method("all-gather+dense"), spec, pair, pair.everyone).exchange


def _coding(comet: Machine) -> float:
    """Return the seconds to encode and decode a byte of values on a P100."""
    rate = CODECS[CODEC].rate(comet.device)
    return rate.encode + rate.decode


def _gains(comet: Machine) -> Iterator[PublishedRow]:
    """Yield the lowest ratio at which compression pays on a link, and the highest rate."""
    nbytes = 4e9  # large: the formula has no latency
    work = nbytes * _coding(comet)
    inputs = "passes 600 GB/s (4), FFT 71, packing 67, selection 30"
    for rate, derived in ((10, 1.21), (32, 2.23)):
        dense = _hop(comet, rate / 8 * 1e9, nbytes)

        def saved(ratio: float, rate: int = rate, dense: float = dense) -> float:
            return dense - work - _hop(comet, rate / 8 * 1e9, nbytes / ratio)

        yield PublishedRow(
            group="ratio that pays",
            what=f"over a link of {rate} Gbit/s",
            inputs=inputs,
            unit="",
            derived=derived,
            predicted=root(saved, 1.0, 100.0),
            bar=FORMULA,
        )
    limit = root(lambda rate: _hop(comet, rate, nbytes) - work, 1e8, 1e11)
    yield PublishedRow(
        group="rate beyond which none pays",
        what="link",
        inputs=inputs,
        unit="Gbit/s",
        derived=57.9,
        predicted=limit * 8e-9,
        bar=FORMULA,
    )


def _packet(numel: int) -> float:
    """Return the bytes of a packet of the codec."""
    whole = BucketSpec.uniform(numel)
    return float(CODECS[CODEC].nbytes(whole, np.zeros(1, np.int64), np.array([numel]), 1)[0])


def _ratios() -> Iterator[PublishedRow]:
    """Yield the compression ratio with and without the bitmap of kept values."""
    numel = 2**24
    packet, bins = _packet(numel), packed_bytes(numel // 2 + 1)
    for what, wanted, nbytes, note in (
        ("without the bitmap", 21.3, packet - bins, "as quoted"),
        ("bitmap of the bins", 16.0, packet, "as our packets are; the paper leaves it out"),
        ("bitmap of the elements", 12.8, packet - bins + packed_bytes(numel), "likewise"),
    ):
        printed = what == "without the bitmap"
        yield PublishedRow(
            group="compression ratio",
            what=what,
            inputs="theta .85, 10 bits per part",
            unit="",
            published=wanted if printed else None,
            derived=None if printed else wanted,
            predicted=4 * numel / nbytes,
            bar=FORMULA,
            note=note,
        )
    yield PublishedRow(
        group="ranks up to which it beats a ring",
        what="all-gather of packets",
        inputs="fewer bytes than a dense ring: n < 2 ratio",
        unit="ranks",
        derived=2 * 16.0,
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
    """Yield the paper's test values of the range float."""
    small = rangefloat.from_least(8, 3, 0.125)
    code = small.encode(np.array([0.256], np.float32))
    up = rangefloat.up_to(8, 3, 1.0)
    for what, inputs, wanted, found in (
        ("code of 0.256", "8 bits, m = 3, eps = .125", 0b00001001, float(code[0])),
        ("value of 00001001", "8 bits, m = 3, eps = .125", 0.25, float(small.decode(code)[0])),
        ("eps", "8 bits, m = 3, largest 1", 1.9e-5, up.least),
    ):
        yield PublishedRow(
            group="range float",
            what=what,
            inputs=inputs,
            unit="",
            published=None if what == "eps" else float(wanted),
            derived=wanted if what == "eps" else None,
            predicted=found,
            bar=FORMULA,
        )


def _left_behind() -> Iterator[PublishedRow]:
    """Yield the L2 norm that each selection drops, relative to the signal's."""
    numel = 2**18
    white = np.random.default_rng(0).standard_normal(numel).astype(np.float32)
    signals = {"white": white, "AR(1), .9": _correlated(white, 0.9)}
    limits = {"white": (0.752, 0.664), "AR(1), .9": (0.324, 0.665)}
    for name, signal in signals.items():
        for codec, limit in zip((CODEC, f"topk:{SHARE}"), limits[name], strict=True):
            coded, back = CODECS[codec], np.empty_like(signal)
            coded.decode(coded.encode(signal.copy(), {}), back)
            yield PublishedRow(
                group="L2 norm left behind, of the signal's",
                what=f"{codec}, {name}",
                inputs=f"{numel:,} normal values, 15 % kept",
                unit="",
                derived=limit,
                predicted=float(np.linalg.norm(signal - back) / np.linalg.norm(signal)),
                bar=FORMULA,
                note="limits of large signals",
            )


def _correlated(noise: np.ndarray, factor: float) -> np.ndarray:
    """Return x_i = factor x_(i-1) + noise_i from 0: factor^k noise_(i-k), summed by doubling."""
    total, step, power = noise.astype(np.float64), 1, factor
    while power > 1e-12:
        total[step:] += power * total[:-step].copy()
        step, power = 2 * step, power * power
    return total.astype(np.float32)


def _sizes() -> Iterator[PublishedRow]:
    """Yield the bytes of all gradients of a net."""
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
            cause="" if known else "He et al.'s ResNet-32 has 464,154 parameters, not 1.5 million",
        )
