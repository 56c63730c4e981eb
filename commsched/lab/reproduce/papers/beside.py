"""Methods of further papers: the papers' formulas against the bytes of our methods."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np

from commsched.codecs.bloom import bloom
from commsched.codecs.topk import RENEW
from commsched.coding.registry import CODECS
from commsched.cost.price import price
from commsched.exchange.registry import find_method
from commsched.lab.reproduce.paper import (
    FORMULA,
    PAPERS,
    PUBLISHED_ONLY,
    Otherwise,
    Paper,
    PublishedRow,
    Trend,
    missing,
)
from commsched.lab.reproduce.training_steps import in_turn
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net import file as nets
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.compute import fitted
from commsched.net.graph import Tensor

SOURCE = (
    "DeepReduce, arXiv 2102.03112; HiTopKComm, arXiv 2010.10458; Ok-Topk, PPoPP 2022; SparCML"
    " (DSAR), SC 2019; OmniReduce, SIGCOMM 2021; PowerSGD, NeurIPS 2019; ShadowSync, arXiv"
    " 2003.03477; machine: p3.16xlarge"
)
NUMEL, SHARE, NODES, LANES = 10**7, 0.01, 16, 8
BLOCK, SIDE, RANK = 256, 4096, 4
NETS = ("resnet50", "vgg19", "gpt2")
PRINTED = (  # in the abstracts
    ("Ok-Topk over other sums: throughput of BERT on 256 GPUs, least", "x", 3.29),
    ("Ok-Topk over other sums: throughput of BERT on 256 GPUs, most", "x", 12.95),
    ("OmniReduce: training faster, up to", "x", 8.2),
    ("DeepReduce: data less than sparsifiers send, up to", "%", 320.0),
)


def rows() -> Iterator[PublishedRow]:
    """Yield the formulas; no paper's times were available."""
    kept, ranks = SHARE * NUMEL, NODES * LANES
    whole = np.zeros(1, np.int64), np.array([NUMEL])
    thin = BucketSpec.uniform(NUMEL, SHARE)
    filter_ = 8 * float(bloom(["0.001"]).nbytes(np.array([kept]), np.array([NUMEL]))[0]) / kept
    block = float(CODECS["block"].nbytes(thin, *whole, 1)[0])
    squared = Tensor(name="square", shape=(SIDE, SIDE))
    matrix = BucketSpec.of((Piece("square", 0, SIDE * SIDE),), {"square": squared})
    low = 2 * (ranks - 1) / ranks * 4 * RANK * 2 * SIDE
    lanes = 2 * (LANES - 1) / LANES * 4 * NUMEL + (NODES - 1) * 8 * kept / LANES
    for group, what, inputs, unit, derived, predicted in (
        ("DeepReduce: bits of a Bloom filter", "per index", "1e-3 wrong", "", 14.4, filter_),
        (
            "SparCML: non-zeros of a sum",
            "16 ranks",
            "1 % each, drawn evenly",
            "million",
            NUMEL * (1 - (1 - SHARE) ** NODES) / 1e6,
            float(thin.nonzeros(*whole, NODES)[0]) / 1e6,
        ),
        (
            "OmniReduce: bytes of the blocks that hold a non-zero",
            "a rank",
            f"10 million elements, 1 %, blocks of {BLOCK}",
            "MB",
            4e-6 * NUMEL * (1 - (1 - SHARE) ** BLOCK),
            block / 1e6,
        ),
        (
            f"PowerSGD of rank {RANK}: bytes from a rank",
            f"{SIDE} x {SIDE}",
            "two rings of r (m + n) values, 128 ranks",
            "MB",
            low / 1e6,
            _sent(f"powersgd:{RANK}", matrix) / 1e6,
        ),
        (
            "HiTopKComm: bytes from a rank",
            "16 nodes of 8",
            "rings inside nodes, 1 % of a lane's part between them",
            "MB",
            lanes / 1e6,
            _sent(f"hitopk:{SHARE}", BucketSpec.uniform(NUMEL)) / 1e6,
        ),
    ):
        yield PublishedRow(
            group=group,
            what=what,
            inputs=inputs,
            unit=unit,
            derived=derived,
            predicted=predicted,
            bar=FORMULA,
        )
    yield from _faster()
    for what, unit, published in PRINTED:
        yield PublishedRow(
            group="factors in the abstract" if unit == "x" else "shares in the abstract",
            what=what,
            inputs="",
            unit=unit,
            published=published,
            note=f"{PUBLISHED_ONLY}: net, batch or cluster are not in the abstract",
        )
    for name in ("PowerSGD", "ShadowSync", "DSAR"):
        yield missing(f"times of {name}", "its own training runs")


def _faster() -> Iterator[PublishedRow]:
    """Compare HiTopKComm's gain in training steps per second with the range in its abstract."""
    on = resized(machines.load("p3.16xlarge"), NODES, LANES)

    def gains(dense: str) -> list[float]:
        found = (fitted(nets.load(name), on.device) for name in NETS)
        steps = [(in_turn(net, on, dense), in_turn(net, on, f"hitopk:{SHARE}")) for net in found]
        return sorted(100 * (before / after - 1) for before, after in steps)

    half, single = gains("hierarchical+fp16"), gains("hierarchical+dense")
    for what, place, published in (("least", 0, 25.0), ("most", -1, 40.0)):
        yield PublishedRow(
            group="HiTopKComm: training faster by (abstract)",
            what=f"{what}, CNNs and Transformer",
            inputs=f"{NODES} nodes of {LANES} V100; {', '.join(NETS)}, top-k 1 %",
            unit="%",
            published=published,
            predicted=half[place],
            inferred=(
                Otherwise(
                    inferred="against dense sums in 16 bits, in each node first",
                    instead="in 32 bits",
                    predicted=single[place],
                ),
            ),
            cause="nets and batches are not in the abstract, and its input pipeline is not in ours",
        )


@cache
def _sent(method: str, spec: BucketSpec, lanes: int = LANES) -> float:
    on = resized(machines.load("p3.16xlarge"), NODES, lanes)
    return price(find_method(method), spec, on, on.everyone).sent


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check the bounds of Ok-Topk's words, which exclude the sums for a new threshold."""
    spec = BucketSpec.uniform(NUMEL)
    for nodes, lanes in ((NODES, 1), (NODES, LANES)):
        ranks = nodes * lanes
        words = _sent(f"ok-topk:{SHARE}", spec, lanes) / (4 * SHARE * NUMEL) - ranks / RENEW
        yield Trend(
            what=f"Ok-Topk, {ranks} ranks: 2 to 6 words from a rank, over k (p - 1) / p, and"
            f" p k / {RENEW} of sums for a new threshold",
            shown=f"{words * ranks / (ranks - 1):.3g} and {ranks / RENEW:.3g}",
            met=2.0 <= words * ranks / (ranks - 1) <= 6.0,
        )


PAPERS.add("beside")(Paper(SOURCE, rows, trends))
