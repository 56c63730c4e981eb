"""Laws for the positions of a gradient's non-zeros, and their density after ranks are summed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Annotated, Literal, get_args

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.errors import CommschedError
from commsched.records import EXACT, normalise, pairs

Law = Literal["dense", "uniform", "zipf", "mask", "curve"]

EXACT_ROWS = 4096  # zipf: rows with a cell of their own
CELL_GROWTH = 1.002  # zipf: growth of the later cells; the error is below 1e-5
HALVINGS = 60  # of an interval that holds the density of a pool
MAX_EXPONENT = 8.0  # zipf: beyond this the tail underflows


@dataclass(frozen=True, slots=True, kw_only=True)
class Sparsity:
    """A law for the support of a tensor on one rank, independent between ranks.

    dense: every element. uniform: each element with probability `density`. zipf: whole rows of a
    (rows, width) tensor, row i hit with probability 1 - (1 - p_i)^T, p_i ~ (i+1)^-exponent, T
    draws chosen so that the expected density is `density`. mask: the same `density` of elements on
    every rank. curve: measured (ranks summed, density) points, from (1, density) on; between them
    log(-log(1 - density)) is linear in log(ranks), which is exact for `uniform`; past the last
    point its density holds; spread evenly.
    """

    law: Law = "dense"
    density: Annotated[float, EXACT] = 1.0
    exponent: Annotated[float, EXACT] = 1.0  # zipf
    rows: int = 0  # zipf
    curve: Annotated[
        tuple[tuple[float, float], ...], pairs(EXACT, EXACT)
    ] = ()  # curve: (ranks summed, density), ascending

    def __post_init__(self) -> None:
        normalise(self)
        if self.law not in get_args(Law):
            known = ", ".join(get_args(Law))
            raise CommschedError(f"no sparsity law named {self.law!r}; known: {known}")
        if not 0.0 < self.density <= 1.0:
            raise CommschedError(f"density must be in (0, 1], got {self.density}")
        if self.law == "dense" and self.density != 1.0:
            raise CommschedError(f"law 'dense' has density 1, got {self.density}")
        self._check_zipf()
        self._check_curve()

    def _check_zipf(self) -> None:
        if self.law != "zipf":
            if self.rows != 0 or self.exponent != 1.0:
                raise CommschedError(f"rows and exponent belong to law 'zipf', not to {self.law!r}")
            return
        if not 2 <= self.rows <= 2**40:
            raise CommschedError(f"law 'zipf' needs rows in [2, 2^40], got {self.rows}")
        if not 0.0 <= self.exponent <= MAX_EXPONENT:
            raise CommschedError(
                f"law 'zipf' needs an exponent in [0, {MAX_EXPONENT:g}], got {self.exponent}"
            )

    def _check_curve(self) -> None:
        if self.law != "curve":
            if self.curve:
                raise CommschedError(f"a curve belongs to law 'curve', not to {self.law!r}")
            return
        if not self.curve or self.curve[0] != (1, self.density):
            first = list(self.curve[0]) if self.curve else "no point"
            raise CommschedError(f"the curve must start at [1, {self.density}], got {first}")
        for (ranks, density), (more, denser) in zip(self.curve, self.curve[1:], strict=False):
            if not (isfinite(more) and more > ranks and density <= denser <= 1.0):
                raise CommschedError(
                    f"curve point {[more, denser]} after {[ranks, density]}: ranks must ascend,"
                    " densities must not descend and be at most 1"
                )

    def at(self, density: float) -> "Sparsity":
        """Return the law with another density of one rank; `dense` becomes `uniform`."""
        if self.law == "curve":
            raise CommschedError("a measured curve has the density that was measured")
        law = "uniform" if self.law == "dense" and density < 1.0 else self.law
        return replace(self, law=law, density=density)

    def after(self, merged: int | Ints) -> Floats:
        """Return the expected density after summing `merged` >= 1 ranks: same shape as `merged`."""
        ranks = np.asarray(merged, np.float64)
        assert np.all(ranks >= 1), merged
        if self.law == "dense":
            return np.ones_like(ranks)
        if self.law == "mask":
            return np.full_like(ranks, self.density)
        if self.law == "uniform":
            return _exactly_first(ranks, -np.expm1(ranks * _log_zero(self.density)), self.density)
        if self.law == "curve":
            return _exactly_first(ranks, _interpolate(self.curve, ranks), self.density)
        return _each(lambda k: _zipf_rows(self, k)[-1] / self.rows, ranks)

    def nonzeros(self, numel: int, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the expected non-zeros among elements [start, stop), `merged` ranks summed: (m,).

        A range that cuts a row of `zipf` gets the even share of it.
        """
        start, stop, merged = np.broadcast_arrays(start, stop, merged)
        if self.law != "zipf":
            return (stop - start) * self.after(merged)
        edges = _zipf_cells(self.rows, self.exponent)[0]
        width = numel / self.rows
        nonzeros = np.empty(start.shape)
        for k in np.unique(merged):
            here, rows = merged == k, _zipf_rows(self, float(k))
            upper = np.interp(stop[here] / width, edges, rows)
            nonzeros[here] = width * (upper - np.interp(start[here] / width, edges, rows))
        return nonzeros

    def log_empty(self, numel: int, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the logarithm of the probability that elements [start, stop) are all zero: (m,).

        After summing `merged` ranks; 0 for an empty range.
        """
        start, stop, merged = np.broadcast_arrays(start, stop, merged)
        if self.law == "zipf":
            edges, log_miss = _zipf_cells(self.rows, self.exponent)
            # Added up from the rare rows on, which frequent ones would round away.
            missed = np.append(np.cumsum((log_miss * np.diff(edges))[::-1])[::-1], 0.0)
            # Integer arithmetic misses no row by rounding.
            last = (stop - 1) * self.rows // numel + 1
            misses = np.interp(start * self.rows // numel, edges, missed)
            misses -= np.interp(last, edges, missed)
            draws = _zipf_draws(self.rows, self.exponent, self.density)
        else:
            with np.errstate(divide="ignore", invalid="ignore"):
                misses = (stop - start) * np.log1p(-self.after(merged))
            draws, merged = 1.0, np.ones_like(merged)
        with np.errstate(invalid="ignore"):
            return np.where(stop > start, draws * merged * misses, 0.0)

    def runs(self, numel: int, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the expected runs of neighbouring non-zeros among elements [start, stop): (m,).

        After summing `merged` ranks; rows of `zipf` are whole.
        """
        start, stop, merged = np.broadcast_arrays(start, stop, merged)
        if self.law != "zipf":
            share = self.after(merged)
            return np.where(stop > start, share * ((stop - start) * (1 - share) + share), 0.0)
        edges, _ = _zipf_cells(self.rows, self.exponent)
        first = np.minimum(start * self.rows // numel, self.rows - 1)  # of nothing: any
        last = np.maximum((stop - 1) * self.rows // numel, first)
        runs = np.empty(start.shape)
        for k in np.unique(merged):
            here = merged == k
            hits = np.diff(_zipf_rows(self, float(k))) / np.diff(edges)
            before = np.append(hits[:1], hits[:-1])  # of the row before the first of a cell
            each = hits * (np.diff(edges) * (1 - hits) + hits - before)
            begun = np.concatenate([[0.0], np.cumsum(each)])
            at = hits[np.searchsorted(edges, first[here], side="right") - 1]
            inside = np.interp(last[here] + 1, edges, begun)
            runs[here] = at + inside - np.interp(first[here] + 1, edges, begun)
        return np.where(stop > start, runs, 0.0)

    def entropy(self, numel: int, merged: int) -> float:
        """Return the least bits that tell which elements are non-zero after summing `merged` ranks.

        The reader knows the law: 0 for `mask`, and for `curve`, whose ranks may be dependent.
        """
        if self.law == "uniform":
            return numel * float(_bits(self.after(merged)))
        if self.law == "zipf":
            edges, log_miss = _zipf_cells(self.rows, self.exponent)
            draws = _zipf_draws(self.rows, self.exponent, self.density) * merged
            return float(np.sum(_bits(-np.expm1(draws * log_miss)) * np.diff(edges)))
        return 0.0

    def support(self, numel: int, rng: np.random.Generator) -> Ints:
        """Draw one rank's support: sorted element indices; `mask` needs equal rngs on all ranks."""
        if self.density == 1.0:
            return np.arange(numel)
        if self.law != "zipf":
            return _bernoulli(numel, self.density, rng)
        hit = np.flatnonzero(rng.random(self.rows) < _zipf_hits(self))
        first, stop = (-(-(hit + i) * numel // self.rows) for i in (0, 1))  # ceiling: whole rows
        lengths = stop - first
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        support: Ints = np.arange(total) + np.repeat(first - (ends - lengths), lengths)
        return support

    def drawn(
        self, numel: int, ranks: int, common: np.random.Generator, own: np.random.Generator
    ) -> Ints:
        """Draw the support of one of `ranks` ranks, whose union is as dense as `after` says.

        Under `mask` and `curve` each takes a share of a pool of elements that all know: `common` is
        equal on all ranks, and independent of `own`.
        """
        if self.law not in ("mask", "curve"):
            return self.support(numel, own)
        pool = self._pool(ranks)
        found = _bernoulli(numel, pool, common)
        if pool == self.density:
            return found
        mine: Ints = found[own.random(len(found)) < self.density / pool]
        return mine

    def _pool(self, ranks: int) -> float:
        """Return the density q of a pool from which each rank takes a share d / q:

        q (1 - (1 - d / q) ** ranks) = after(ranks)
        """
        union, low, high = float(self.after(ranks)), self.density, 1.0
        if union <= low:
            return low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            more = -middle * np.expm1(ranks * np.log1p(-self.density / middle)) < union
            low, high = (middle, high) if more else (low, middle)
        return high


DENSE = Sparsity()


def _bits(share: Floats) -> Floats:
    """Return the binary entropy of a probability, bits: same shape."""
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(p > 0, -p * np.log2(p), 0.0) for p in (share, 1.0 - share)]
    return parts[0] + parts[1]


def _exactly_first(ranks: Floats, density: Floats, first: float) -> Floats:
    """Replace the density of one rank by the law's own, which rounding may miss by an ulp."""
    return np.where(ranks == 1, first, np.maximum(density, first))


def _each(function: Callable[[float], float], ranks: Floats) -> Floats:
    """Call `function` once per distinct value."""
    values, where = np.unique(ranks, return_inverse=True)
    return np.array([function(float(v)) for v in values])[where].reshape(ranks.shape)


def _log_zero(density: float) -> float:
    """Return log(1 - density): the logarithm of the probability that an element is zero."""
    return float(np.log1p(-min(density, 1 - 1e-15)))


def _interpolate(curve: tuple[tuple[float, float], ...], ranks: Floats) -> Floats:
    points = np.array(curve)
    draws = np.log([-_log_zero(d) for d in points[:, 1]])
    return -np.expm1(-np.exp(np.interp(np.log(ranks), np.log(points[:, 0]), draws)))


def _bernoulli(numel: int, density: float, rng: np.random.Generator) -> Ints:
    """Choose each element with probability `density` by drawing the gaps between: O(chosen).

    Source: Batagelj & Brandes, "Efficient generation of large random networks", PRE 71, 2005.
    """
    parts, last = [], -1
    while last < numel:
        expected = (numel - last) * density
        count = int(expected + 6 * expected**0.5) + 16
        gaps = np.minimum(rng.geometric(density, count), numel + 1)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    indices = np.concatenate(parts)
    return indices[: np.searchsorted(indices, numel)]


@lru_cache(maxsize=64)
def _zipf_cells(rows: int, exponent: float) -> tuple[Floats, Floats]:
    """Return cells of rows alike in probability: edges (c+1,), and log(1 - p) of a row in each.

    The first rows stand alone, later ones in cells that grow geometrically, each with the mean
    probability of its rows (Euler-Maclaurin: the integral at half-integers), so that a table of
    millions of rows costs a few thousand numbers.
    """
    count = max(0, int(np.ceil(np.log(max(rows / EXACT_ROWS, 1.0)) / np.log(CELL_GROWTH))))
    tail = EXACT_ROWS * (rows / EXACT_ROWS) ** (np.arange(1, count + 1) / max(count, 1))
    edges = np.concatenate([np.arange(min(rows, EXACT_ROWS) + 1), np.round(tail)])
    weights = (np.arange(len(edges) - 1) + 1.0) ** -exponent
    if count:
        low, high = edges[EXACT_ROWS:-1] + 0.5, edges[EXACT_ROWS + 1 :] + 0.5
        if exponent == 1.0:
            mass = np.log(high / low)
        else:
            mass = (high ** (1 - exponent) - low ** (1 - exponent)) / (1 - exponent)
        weights[EXACT_ROWS:] = mass / (high - low)
    return edges, np.log1p(-weights / np.sum(weights * np.diff(edges)))


@lru_cache(maxsize=64)
def _zipf_draws(rows: int, exponent: float, density: float) -> float:
    """Find T such that the expected density is `density`, by bisection over log(T)."""
    if density == 1.0:
        return np.inf
    edges, log_miss = _zipf_cells(rows, exponent)
    low, high = -50.0, 200.0
    while low < (middle := (low + high) / 2) < high:
        got = -np.sum(np.expm1(np.exp(middle) * log_miss) * np.diff(edges)) / rows
        low, high = (middle, high) if got < density else (low, middle)
    return float(np.exp(high))


@lru_cache(maxsize=512)
def _zipf_rows(law: Sparsity, merged: float) -> Floats:
    """Return the expected rows hit before each edge of the cells, `merged` ranks summed: (c+1,)."""
    edges, log_miss = _zipf_cells(law.rows, law.exponent)
    draws = _zipf_draws(law.rows, law.exponent, law.density) * merged
    rows = np.concatenate([[0.0], np.cumsum(-np.expm1(draws * log_miss) * np.diff(edges))])
    if merged == 1:
        rows *= law.density * law.rows / rows[-1]  # correct the error that the bisection leaves
    return rows


@lru_cache(maxsize=4)
def _zipf_hits(law: Sparsity) -> Floats:
    """Return the probability that one rank hits each row: (rows,)."""
    edges, log_miss = _zipf_cells(law.rows, law.exponent)
    draws = _zipf_draws(law.rows, law.exponent, law.density)
    hits: Floats = np.repeat(-np.expm1(draws * log_miss), np.diff(edges).astype(np.int64))
    return hits
