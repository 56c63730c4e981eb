"""Sparse gradients for benchmarks: even supports, Zipf rows, rows of real text, a net's top-k."""

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from commsched.train.data import text
from commsched.train.forward_backward import gradients
from commsched.train.layers.layer import TrainableNet
from commsched.train.registry import DATA, NETS

ROWS = 2**15  # rows of a Zipf table: a vocabulary of sub-words
BLOCKS, SEQUENCES = 4, 2  # of the GPT whose top-k is taken, and of a rank's batch
GRID = 2.0**-16  # values are multiples of it, at most 2**2: float32 sums of 64 ranks are exact
MOST = 4.0


class Support(NamedTuple):
    """The non-zeros of one rank's gradient, and the sparsity that its planner expects."""

    spec: BucketSpec
    index: Array  # (m,) int32, ascending
    rows: Array  # (k,) int, ascending: rows with non-zeros, each of them whole
    of: int  # number of rows; without a table, every element is a row
    values: Array  # (m,) float32, non-zero; their sums do not depend on the order of ranks


def draw(kind: str, numel: int, density: float, rank: int) -> Support:
    """Draw rank `rank`'s support of one of KINDS."""
    if density >= 1:
        everything = np.arange(numel, dtype=np.int32)
        return _support(BucketSpec.uniform(numel), everything, everything, numel, rank)
    return KINDS[kind](numel, density, rank)


def _support(spec: BucketSpec, index: Array, rows: Array, of: int, rank: int) -> Support:
    """Return the support with values on the grid."""
    drawn = np.random.default_rng([rank, 12]).standard_normal(len(index))
    return Support(spec, index.astype(np.int32), rows, of, _on_grid(drawn))


def _on_grid(drawn: Array) -> Array:
    """Round to non-zero (m,) float32 values whose sums do not depend on the order."""
    rounded = np.rint(np.clip(drawn, -MOST, MOST) / GRID)
    rounded[rounded == 0] = 1
    return (rounded * GRID).astype(np.float32)


def _uniform(numel: int, density: float, rank: int) -> Support:
    return _drawn(Sparsity(law="uniform", density=density), numel, rank)


def _zipf(numel: int, density: float, rank: int) -> Support:
    """Draw rows of an embedding table by Zipf's law, the most frequent first."""
    rows = max(2, min(ROWS, numel))
    return _drawn(Sparsity(law="zipf", density=density, rows=rows), numel, rank)


def _drawn(law: Sparsity, numel: int, rank: int) -> Support:
    index = law.support(numel, np.random.default_rng([rank, 11]))
    of = law.rows or numel
    rows = np.unique(index * of // numel) if law.rows else index
    return _support(BucketSpec(((law, numel, 0, numel),)), index, rows, of, rank)


def entropy(share: float) -> float:
    """Return the entropy, bits per row, of the set of hit rows for an evenly spread `share`."""
    return -sum(float(p * np.log2(p)) for p in (share, 1 - share) if p > 0)


def _text(numel: int, density: float, rank: int) -> Support:
    """Take the rows that a stretch of CPython's manual hits in a table of all words of the manual.

    Rank r reads the text from its fraction r / 64 on until it has hit `density` of the rows; rows
    are in order of frequency.
    """
    words = text.words()
    rows = int(words.max()) + 1
    if numel < rows:
        raise CommschedError(f"support 'text' needs at least {rows} elements, got {numel}")
    read = np.roll(words, -(rank % 64) * len(words) // 64)
    _, first = np.unique(read, return_index=True)
    wanted = max(1, round(density * rows))
    hit = np.sort(read[np.sort(first)[:wanted]])
    width = numel // rows
    index = (hit[:, np.newaxis] * width + np.arange(width)).ravel()
    law = Sparsity(law="zipf", density=density, rows=rows)
    return _support(BucketSpec(((law, numel, 0, numel),)), index, hit, rows, rank)


def _top(numel: int, density: float, rank: int) -> Support:
    """Take the largest elements of the gradient of a GPT that reads bytes of CPython's manual.

    The net has BLOCKS blocks and is at its first step. Elements of its gradient beyond `numel` are
    left out. Rank r reads the SEQUENCES sequences that start at r SEQUENCES. The largest element
    becomes MOST.
    """
    gradient = _gradient(numel, rank)
    kept = max(1, round(density * numel))
    index = np.sort(np.argpartition(np.abs(gradient), numel - kept)[numel - kept :])
    largest = gradient.take(index)
    scaled = largest * (MOST / max(float(np.abs(largest).max()), 1e-30))
    spec = BucketSpec.uniform(numel, density)
    return Support(spec, index.astype(np.int32), index, numel, _on_grid(scaled))


@lru_cache(maxsize=1)
def _gradient(numel: int, rank: int) -> Array:
    """Return the first `numel` elements of the gradient of a net of that size: float32."""
    width = 4
    while _elements(net := NETS[f"gpt:{width}:{BLOCKS}:4"]) < numel:
        width = max(width + 4, int(width * 0.999 * (numel / _elements(net)) ** 0.5) // 4 * 4)
    samples = DATA[net.data](0).train
    places = np.arange(rank * SEQUENCES, (rank + 1) * SEQUENCES) % len(samples)
    batch = samples.of(places)
    _, layers = gradients(net, net.start(0), batch.inputs, batch.targets)
    found = {name: part for _, own in layers for name, part in own.items()}
    return np.concatenate([found[name].ravel() for name in net.tensors])[:numel]


def _elements(net: TrainableNet) -> int:
    return sum(prod(start.shape) for start in net.tensors.values())


KINDS: dict[str, Callable[[int, float, int], Support]] = {
    "uniform": _uniform,
    "zipf": _zipf,
    "text": _text,
    "top": _top,
}
