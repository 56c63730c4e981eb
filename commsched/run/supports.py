"""Supports that sums of sparse gradients are measured on: even, Zipf rows, rows of real text."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from commsched.codecs import Array
from commsched.data import text
from commsched.errors import CommschedError
from commsched.ir import Sparsity
from commsched.plan import BucketSpec

ROWS = 2**15  # of a Zipf table: a vocabulary of sub-words
GRID = 2.0**-16  # values are multiples of it, at most 2**2: float32 sums of 64 ranks are exact
MOST = 4.0


class Support(NamedTuple):
    """Where one rank's gradient is not zero, and what its planner expects."""

    spec: BucketSpec
    index: Array  # (m,) int32, ascending
    rows: Array  # (k,) int, ascending: those that are hit, each of them whole
    of: int  # rows that there are; an element is a row where elements are hit one by one


def draw(kind: str, numel: int, density: float, rank: int) -> Support:
    """Draw rank `rank`'s support of one of KINDS."""
    if density >= 1:
        everything = np.arange(numel, dtype=np.int32)
        return Support(BucketSpec.uniform(numel), everything, everything, numel)
    return KINDS[kind](numel, density, rank)


def values(count: int, rank: int) -> Array:
    """Normal values whose sums are the same in every order: (count,) float32, none zero."""
    drawn = np.random.default_rng([rank, 12]).standard_normal(count)
    rounded = np.rint(np.clip(drawn, -MOST, MOST) / GRID)
    rounded[rounded == 0] = 1
    return (rounded * GRID).astype(np.float32)


def _uniform(numel: int, density: float, rank: int) -> Support:
    return _drawn(Sparsity(law="uniform", density=density), numel, rank)


def _zipf(numel: int, density: float, rank: int) -> Support:
    """Rows of an embedding table, the most frequent first."""
    rows = max(2, min(ROWS, numel))
    return _drawn(Sparsity(law="zipf", density=density, rows=rows), numel, rank)


def _drawn(law: Sparsity, numel: int, rank: int) -> Support:
    index = law.support(numel, np.random.default_rng([rank, 11]))
    of = law.rows or numel
    rows = np.unique(index * of // numel) if law.rows else index
    return Support(BucketSpec(((law, numel, 0, numel),)), index.astype(np.int32), rows, of)


def entropy(share: float) -> float:
    """Bits per row that say which rows are hit, where a `share` of them is, spread evenly."""
    return -sum(float(p * np.log2(p)) for p in (share, 1 - share) if p > 0)


def _text(numel: int, density: float, rank: int) -> Support:
    """Rows of the table of all words of CPython's manual that a stretch of it hits.

    Rank r reads from word r / 64 of the text on, until `density` of the rows are hit; rows are in
    order of frequency.
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
    return Support(BucketSpec(((law, numel, 0, numel),)), index.astype(np.int32), hit, rows)


KINDS: dict[str, Callable[[int, float, int], Support]] = {
    "uniform": _uniform,
    "zipf": _zipf,
    "text": _text,
}
