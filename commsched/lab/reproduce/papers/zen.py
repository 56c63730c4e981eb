"""Zen, Wang et al., OSDI 2025: bytes of all schemes, and times on 16 machines at 25 Gbit/s."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.cost.price import Price, price
from commsched.exchange.method import Phase
from commsched.exchange.registry import find_method
from commsched.kernels.hashing import grouped, placed
from commsched.lab.reproduce.paper import (
    FORMULA,
    PAPERS,
    Paper,
    PublishedRow,
    Trend,
    below,
    crossing,
    missing,
    predictions,
    root,
)
from commsched.lab.reproduce.training_steps import overlapped
from commsched.machine import file as machines
from commsched.machine.model import Machine, resized
from commsched.net import file as nets
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Net, Tensor
from commsched.net.sparsity import Sparsity

SOURCE = (
    "Wang, Xu, Xi, Wang, Shrivastava & Ng, 'Zen: empowering distributed training with"
    " sparsity-driven data synchronization', OSDI 2025, arXiv 2309.13254; machine: p3.16xlarge"
)
DRAWN = 0.10  # bar of random draws
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
LAW = "rows drawn after Zipf's law with exponent 1"
NODES = f"{LAW}; a machine's 8 gradients are summed before, which is left out on both sides"
SERIAL = {1: 21.0, 2: 9.0, 3: 4.2, 4: 2.05}  # tries -> %


def rows() -> Iterator[PublishedRow]:
    """All numbers of the paper that were available."""
    p3 = machines.load("p3.16xlarge")
    for name, net in NETS.items():
        yield from _bytes(name, nets.load(net), p3, MACHINES)
    yield from _bytes("NMT", nets.load("nmt"), p3, MACHINES * LANES)
    yield from _crossovers(p3)
    yield from _bitmaps(p3)
    yield from _densities(p3)
    yield from _embeddings(resized(p3, MACHINES, 1))
    yield from _throughputs(resized(p3, MACHINES, 1))
    yield from _hashing(p3)
    yield missing("speed-ups at 100 Gbit/s", "LSTM, DeepFM, NMT, 16 machines")
    yield missing("throughput of DeepFM and NMT", "16 machines, 25 Gbit/s")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check the paper's theorem on coordinate lists, and the balance of hashed parts."""
    for name in NETS:
        sent = {x: predictions(found, _sent(name, MACHINES), x)[0] for x in COO}
        least = min(sent["BP"], sent["HC (SparCML)"])
        yield Trend(
            what=f"{name}, 16 ranks: of coordinate lists BP or HC sends the fewest bytes",
            shown=", ".join(f"{x} {nbytes:.0f} MB" for x, nbytes in sent.items()),
            met=least <= min(sent.values()) * (1 + 1e-6),  # with equal load sparse PS sends as many
        )
    counts = np.diff(grouped(_support(), MACHINES).ends)
    skew = float(counts.max() / counts.mean())
    yield below("parts by hash: the fullest over the mean, below 1.1", skew, 1.1)


def _support() -> np.ndarray:
    """The non-zeros of a gradient of 2^22 elements, 2 % of its rows hit by Zipf's law."""
    law = Sparsity(law="zipf", density=0.02, rows=2**14)
    return law.support(2**22, np.random.default_rng(5))


def _spec(tensor: Tensor) -> BucketSpec:
    return BucketSpec.of((Piece(tensor.name, 0, tensor.numel),), {tensor.name: tensor})


def _flat(machine: Machine, ranks: int, spec: BucketSpec, method: str) -> Price:
    """Price a method among ranks that are each on a machine of their own."""
    on = resized(machine, ranks, 1)
    return price(find_method(method), spec, on, on.everyone)


def _sent(name: str, ranks: int) -> str:
    return f"bytes from a rank, {name}, {ranks} ranks"


def _formulas(tensor: Tensor, n: int) -> dict[str, float]:
    """The paper's bytes received per rank.

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
        priced = _flat(machine, ranks, _spec(tensor), SCHEMES[scheme])
        yield PublishedRow(
            group=_sent(name, ranks),
            what=scheme,
            inputs=f"{tensor.nbytes / 1e6:.4g} MB, d {law.density:.4g}, d_n {law.after(ranks):.3g}",
            unit="MB",
            derived=nbytes / 1e6,
            predicted=priced.sent / 1e6,
            bar=FORMULA,
            note=f"the paper's formula; {_law(law)}",
        )


def _law(law: Sparsity) -> str:
    return "densities between 1 and 128 ranks" if law.law == "curve" else LAW


def _crossovers(machine: Machine) -> Iterator[PublishedRow]:
    """Yield the points at which one scheme begins to beat another."""
    tensor = nets.load("nmt").tensors[EMBEDDING]
    spec = _spec(tensor)

    def more(ranks: int) -> float:
        gathered, dense = (
            _flat(machine, ranks, spec, SCHEMES[x]).sent for x in ("AGsparse", "AllReduce")
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
    balanced, dense = (_flat(machine, 128, spec, SCHEMES[x]).sent for x in ("BP", "AllReduce"))
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
    """The density from which hashed owners send less than merging by pairs."""

    def centred(density: float) -> float:
        drawn = BucketSpec.uniform(10**7, density)
        both = (_flat(machine, MACHINES, drawn, SCHEMES[x]).sent for x in ("BP", "HC (SparCML)"))
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
    values = 4.0 * _spec(tensor).nonzeros(*one)
    naive = MACHINES * (CODECS["bitmap"].nbytes(_spec(tensor), *one) - values - HEADER)
    summed = 4.0 * float(_spec(tensor).nonzeros(one[0], one[1], MACHINES)[0])
    hashed = _pulled(machine, _spec(tensor)) - MACHINES * HEADER - summed
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
    """Yield the densities up to which a pull's coding saves bytes, and where two are equal."""
    numel = 2**22
    ends = np.zeros(1, np.int64), np.array([numel]), 1

    def coded(codec: str, density: float) -> float:
        return float(CODECS[codec].nbytes(BucketSpec.uniform(numel, density), *ends)[0])

    def naively(density: float) -> float:
        return coded("bitmap", density) + (MACHINES - 1) * numel / 8 - 4 * numel

    def pulled(density: float) -> float:
        drawn = 1 - (1 - density) ** (1 / MACHINES)  # on one rank, for that density of the sum
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
    """Bytes of the sums of all servers as Zen codes them."""
    group = resized(machine, MACHINES, 1).everyone
    pull = find_method("zen").phases(spec, group)[-1]
    assert isinstance(pull, Phase)
    return pull.payload.packets


def summed_first(tensor: Tensor, ranks: int) -> Tensor:
    """Return a tensor summed over a machine's ranks, with the densities after k machines."""
    points = [(k, float(tensor.sparsity.after(k * ranks))) for k in (1, 2, 4, 8, 16)]
    law = Sparsity(law="curve", density=points[0][1], curve=tuple(points))
    return replace(tensor, sparsity=law)


def _embeddings(on: Machine) -> Iterator[PublishedRow]:
    """Yield times to sum an embedding's gradient among 16 machines of one rank each."""
    faster = {"DeepFM": 2.10, "LSTM": 6.77}
    for name, published in faster.items():
        spec = _spec(summed_first(nets.load(NETS[name]).tensors[EMBEDDING], LANES))
        dense = price(find_method("ring+dense"), spec, on, on.everyone).seconds
        if name == "DeepFM":
            yield PublishedRow(
                group="dense ring, DeepFM's embedding",
                what="16 machines, 25 Gbit/s",
                inputs="856 MB",
                unit="ms",
                derived=513.6,
                predicted=dense * 1e3,
                bar=FORMULA,
            )
        yield PublishedRow(
            group="embedding: Zen over AllReduce",
            what=name,
            inputs="16 machines, 25 Gbit/s",
            unit="x",
            published=published,
            predicted=dense / price(find_method("zen"), spec, on, on.everyone).seconds,
            note=NODES,
            cause="the law of the rows is inferred",
        )


def _throughputs(on: Machine) -> Iterator[PublishedRow]:
    """Times of a step among 16 machines."""
    net = _by_machine(nets.load("lm1b"))
    seconds = {
        method: overlapped(net, on, _methods(net, method))
        for method in ("zen", "centralised", "omnireduce", "ring+dense")
    }
    throughputs = {
        "SparCML": (1.67, "centralised"),
        "OmniReduce": (2.48, "omnireduce"),
        "AllReduce": (3.1, "ring+dense"),
    }
    for name, (printed, method) in throughputs.items():
        yield PublishedRow(
            group="throughput of LSTM: Zen over",
            what=name,
            inputs="16 machines, 25 Gbit/s",
            unit="x",
            published=printed,
            predicted=seconds[method] / seconds["zen"],
            note=f"{NODES}; compute of the net file, from flops",
            cause="the law of the rows is inferred",
        )


def _by_machine(net: Net) -> Net:
    """Return the net whose gradients are summed over the 8 ranks of a machine."""
    layers = tuple(
        replace(
            layer,
            tensors=tuple(
                summed_first(t, LANES) if t.name == EMBEDDING else t for t in layer.tensors
            ),
        )
        for layer in net.layers
    )
    return replace(net, layers=layers)


def _methods(net: Net, method: str) -> dict[str, str]:
    """The method for the embedding, a ring for all else."""
    return {name: method if name == EMBEDDING else "ring+dense" for name in net.tensors}


def _hashing(machine: Machine) -> Iterator[PublishedRow]:
    """Yield the seconds to hash, and the share that goes to the serial area."""
    tensor = nets.load("deepfm").tensors[EMBEDDING]
    yield PublishedRow(
        group="hashing and packing, DeepFM",
        what="a V100",
        inputs="214 M elements, 2.80 %",
        unit="ms",
        published=6.0,
        predicted=_flat(machine, MACHINES, _spec(tensor), "zen").encode * 1e3,
        note="traffic of hashing scaled from a processor's to the V100's memory bandwidth",
        cause="a V100's atomics are not in a model of memory traffic",
    )
    index = Sparsity(law="uniform", density=0.01).support(10**7, np.random.default_rng(1))
    for tries, share in SERIAL.items():
        serial = sum(map(len, placed(index, 4, tries).serial))
        yield PublishedRow(
            group="serial share of hierarchical hashing",
            what=f"{tries} tries" if tries > 1 else "1 try",
            inputs="r1 = 2 nnz, 100,000 indices",
            unit="%",
            derived=share,
            predicted=100 * serial / len(index),
            bar=DRAWN,
            note="drawn",
        )


PAPERS.add("zen")(Paper(SOURCE, rows, trends))
