"""Zen: bytes of all schemes, and the points at which one scheme begins to beat another."""

from collections.abc import Iterator

import numpy as np

from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.cost.price import Price, price
from commsched.exchange.method import Phase
from commsched.exchange.registry import find_method
from commsched.lab.reproduce.paper import FORMULA, PublishedRow, crossing, root
from commsched.machine.model import Machine, resized
from commsched.net import file as nets
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Net, Tensor
from commsched.net.sparsity import Sparsity

EMBEDDING = "embedding.weight"
NETS = {"LSTM": "lm1b", "DeepFM": "deepfm", "NMT": "nmt"}
MACHINES, LANES = 16, 8
SCHEMES = {  # name in the paper -> our method
    "AllReduce": "ring+dense",
    "AGsparse": "all-gather+coo",
    "HC (SparCML)": "centralised",
    "sparse PS": "sparse-ps",
    "BP": "balanced",
    "Zen": "zen",
}
COO = ("AGsparse", "HC (SparCML)", "sparse PS", "BP")


def schemes(p3: Machine) -> Iterator[PublishedRow]:
    """Yield bytes and crossovers."""
    for name, net in NETS.items():
        yield from _bytes(name, nets.load(net), p3, MACHINES)
    yield from _bytes("NMT", nets.load("nmt"), p3, MACHINES * LANES)
    yield from _crossovers(p3)
    yield from _bitmaps(p3)
    yield from _densities(p3)


def spec_of(tensor: Tensor) -> BucketSpec:
    return BucketSpec.of((Piece(tensor.name, 0, tensor.numel),), {tensor.name: tensor})


def flat(machine: Machine, ranks: int, spec: BucketSpec, method: str) -> Price:
    """Price a method among ranks that each have their own machine."""
    on = resized(machine, ranks, 1)
    return price(find_method(method), spec, on, on.everyone)


def sent_group(name: str, ranks: int) -> str:
    return f"bytes from a rank, {name}, {ranks} ranks"


def _formulas(tensor: Tensor, n: int) -> dict[str, float]:
    """Return the paper's bytes received per rank, by scheme.

        AllReduce 2 (n - 1) / n M;  AGsparse 2 (n - 1) d M;  sparse PS 2 (n - 1) / n (d + d_n) M
        BP (n - 1) / n (d + d_n) 2 M;  HC sum over i = 1..log2 n of d_(2^(i-1)) 2 M
        Zen (n - 1) / n (2 d + d_n + 1 / 32) M

    n ranks; M [B] of the tensor; d its density, d_k after k ranks are summed.
    Source: Wang et al., "Zen", OSDI 2025. Holds without headers, for servers of equal load.
    """
    law, whole, share = tensor.sparsity, float(tensor.nbytes), (n - 1) / n
    d, filled = float(law.after(1)), float(law.after(n))
    doubled = sum(float(law.after(2**i)) for i in range(n.bit_length() - 1))
    return {
        "AllReduce": 2 * share * whole,
        "AGsparse": 2 * (n - 1) * d * whole,
        "HC (SparCML)": 2 * doubled * whole,
        "sparse PS": 2 * share * (d + filled) * whole,
        "BP": 2 * share * (d + filled) * whole,
        "Zen": share * (2 * d + filled + 1 / 32) * whole,
    }


def _bytes(name: str, net: Net, machine: Machine, ranks: int) -> Iterator[PublishedRow]:
    """Compare the bytes of every scheme: the paper's formula and our method's packets."""
    tensor = net.tensors[EMBEDDING]
    law = tensor.sparsity
    for scheme, nbytes in _formulas(tensor, ranks).items():
        priced = flat(machine, ranks, spec_of(tensor), SCHEMES[scheme])
        yield PublishedRow(
            group=sent_group(name, ranks),
            what=scheme,
            inputs=f"{tensor.nbytes / 1e6:.4g} MB, d {law.density:.4g}, d_n {law.after(ranks):.3g}",
            unit="MB",
            derived=nbytes / 1e6,
            predicted=priced.sent / 1e6,
            bar=FORMULA,
            note="the paper's formula; d_n by the law of the net file",
        )


def _crossovers(machine: Machine) -> Iterator[PublishedRow]:
    """Yield the points at which one scheme begins to beat another."""
    tensor = nets.load("nmt").tensors[EMBEDDING]
    spec = spec_of(tensor)

    def more(ranks: int) -> float:
        gathered, dense = (
            flat(machine, ranks, spec, SCHEMES[x]).sent for x in ("AGsparse", "AllReduce")
        )
        return gathered / dense - 1.0

    yield PublishedRow(
        group="ranks where AGsparse equals dense",
        what="NMT",
        inputs="d 2.47 %",
        unit="ranks",
        derived=40.5,
        predicted=crossing(more),
        bar=FORMULA,
    )
    balanced, dense = (flat(machine, 128, spec, SCHEMES[x]).sent for x in ("BP", "AllReduce"))
    yield PublishedRow(
        group="BP below dense",
        what="NMT, 128 ranks",
        inputs="d 2.47 %, d_n 61.5 %",
        unit="%",
        derived=36.0,
        predicted=100 * (1 - balanced / dense),
        bar=FORMULA,
    )
    yield _balanced_or_centred(machine)


def _balanced_or_centred(machine: Machine) -> PublishedRow:
    """Return the density from which hashed owners send less than merging by pairs."""

    def centred(density: float) -> float:
        drawn = BucketSpec.uniform(10**7, density)
        both = (flat(machine, MACHINES, drawn, SCHEMES[x]).sent for x in ("BP", "HC (SparCML)"))
        return float(np.diff(list(both))[0])

    def printed(density: float) -> float:
        law = Sparsity(law="uniform", density=density)
        found = _formulas(Tensor(name="t", shape=(10**7,), sparsity=law), MACHINES)
        return found["HC (SparCML)"] - found["BP"]

    return PublishedRow(
        group="density above which BP beats HC",
        what=f"{MACHINES} ranks",
        inputs="supports drawn evenly and apart",
        unit="",
        derived=root(printed, 1e-3, 0.5),
        predicted=root(centred, 1e-3, 0.5),
        bar=FORMULA,
        note="the paper's formula",
    )


def _bitmaps(machine: Machine) -> Iterator[PublishedRow]:
    """Yield the bytes of the bitmaps that mark the non-zero sums of a pull."""
    tensor = nets.load("deepfm").tensors[EMBEDDING]
    one = np.zeros(1, np.int64), np.array([tensor.numel]), 1
    values = 4.0 * spec_of(tensor).nonzeros(*one)
    naive = MACHINES * (CODECS["bitmap"].nbytes(spec_of(tensor), *one) - values - HEADER)
    summed = 4.0 * float(spec_of(tensor).nonzeros(one[0], one[1], MACHINES)[0])
    hashed = _pulled(machine, spec_of(tensor)) - MACHINES * HEADER - summed
    for what, derived, nbytes in (
        ("hash bitmaps of all servers", 26.75, hashed),
        ("naive bitmaps of all servers", 428.0, float(naive[0])),
    ):
        yield PublishedRow(
            group="bits of a pull, DeepFM, 16 servers",
            what=what,
            inputs="856 MB",
            unit="MB",
            derived=derived,
            predicted=nbytes / 1e6,
            bar=FORMULA,
        )


def _densities(machine: Machine) -> Iterator[PublishedRow]:
    """Yield densities up to which a coding of a pull saves bytes, and where two are equal."""
    numel = 2**22
    ends = np.zeros(1, np.int64), np.array([numel]), 1

    def coded(codec: str, density: float) -> float:
        return float(CODECS[codec].nbytes(BucketSpec.uniform(numel, density), *ends)[0])

    def naively(density: float) -> float:
        return coded("bitmap", density) + (MACHINES - 1) * numel / 8 - 4 * numel

    def pulled(density: float) -> float:
        drawn = 1 - (1 - density) ** (1 / MACHINES)  # density on one rank for that sum
        return _pulled(machine, BucketSpec.uniform(numel, drawn)) - 4 * numel

    for what, printed, function in (
        ("coordinate lists save up to", 0.5, lambda d: coded("coo", d) - 4 * numel),
        ("naive bitmaps save up to", 0.5, naively),
        ("hash bitmaps save up to", 1 - 1 / 32, pulled),
        ("bitmaps beat lists from", 1 / 32, lambda d: coded("coo", d) - coded("bitmap", d)),
    ):
        yield PublishedRow(
            group="density of a pull",
            what=what,
            inputs=f"{MACHINES} servers",
            unit="",
            derived=printed,
            predicted=root(function, 1e-3, 0.999),
            bar=FORMULA,
        )


def _pulled(machine: Machine, spec: BucketSpec) -> float:
    """Return the bytes of the sums of all servers in Zen's coding."""
    group = resized(machine, MACHINES, 1).everyone
    pull = find_method("zen").phases(spec, group)[-1]
    assert isinstance(pull, Phase)
    return pull.payload.packets
