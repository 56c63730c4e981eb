"""Zen, Wang et al., OSDI 2025: bytes of all schemes, and times on 16 machines at 25 Gbit/s."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from commsched.kernels.hashing import grouped
from commsched.lab.reproduce.paper import (
    PAPERS,
    Paper,
    PublishedRow,
    Trend,
    below,
    missing,
    predictions,
)
from commsched.lab.reproduce.papers.zen.schemes import COO, MACHINES, NETS, schemes, sent_group
from commsched.lab.reproduce.papers.zen.times import times
from commsched.machine import file as machines
from commsched.net.sparsity import Sparsity

SOURCE = (
    "Wang, Xu, Xi, Wang, Shrivastava & Ng, 'Zen: empowering distributed training with"
    " sparsity-driven data synchronization', OSDI 2025, arXiv 2309.13254; machine: p3.16xlarge"
)


def rows() -> Iterator[PublishedRow]:
    """Yield all numbers of the paper that were available."""
    p3 = machines.load("p3.16xlarge")
    yield from schemes(p3)
    yield from times(p3)
    yield missing("speed-ups at 100 Gbit/s", "LSTM, DeepFM, NMT, 16 machines")
    yield missing("throughput of DeepFM and NMT", "16 machines, 25 Gbit/s")


def trends(found: Sequence[PublishedRow]) -> Iterable[Trend]:
    """Check the paper's theorem on coordinate lists, and the balance of hashed partitions."""
    for name in NETS:
        sent = {x: predictions(found, sent_group(name, MACHINES), x)[0] for x in COO}
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
    """Return the non-zeros of a gradient of 2^22 elements; Zipf's law hits 2 % of its rows."""
    law = Sparsity(law="zipf", density=0.02, rows=2**14)
    return law.support(2**22, np.random.default_rng(5))


PAPERS.add("zen")(Paper(SOURCE, rows, trends))
