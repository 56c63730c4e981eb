"""Buckets: consecutive runs of tensors' elements, and how sparse they are."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta

from commsched.arrays import Floats, Ints
from commsched.errors import CommschedError
from commsched.net.graph import Tensor
from commsched.net.sparsity import DENSE, Sparsity

Place = Annotated[int, Meta(ge=0, le=2**53)]  # of an element in its tensor
GRID = np.geomspace(1e-6, 1.0, 96)  # shares of a table whose rows are ordered by frequency


class Piece(NamedTuple):
    """Elements [start, stop) of one tensor, flattened in C order."""

    tensor: Annotated[str, Meta(min_length=1)]
    start: Place
    stop: Place


class Slots(NamedTuple):
    """Tokens that travel to experts and back, in rows: a count, then `slots` tokens of `width`.

    All ranks hold equally many experts. On the way to the experts, a rank has a row for each expert
    in order; on the way back, a row for each rank and each of its own experts.
    """

    taken: tuple[int, ...]  # expected tokens of each expert from one rank
    slots: int
    width: int
    back: bool

    def counts(self, member: int, ranks: int) -> Ints:
        """Return the expected tokens in each row of a member's bucket: (ranks, own experts)."""
        taken = np.array(self.taken, np.int64).reshape(ranks, -1)
        return np.tile(taken[member], (ranks, 1)) if self.back else taken

    @property
    def row(self) -> int:
        """Return the elements of a row."""
        return 1 + self.slots * self.width


@dataclass(frozen=True)
class BucketSpec:
    """The expected content of a bucket: its pieces in order, each with its tensor's law."""

    pieces: tuple[tuple[Sparsity, int, int, int], ...]  # (law, tensor's numel, start, stop)
    lists: bool = False  # the gradients of all pieces are handed over as lists
    # Elements that an index of the first dimension of each piece's tensor has; (): not known.
    widths: tuple[int, ...] = ()
    slots: Slots | None = None  # of activations that travel to experts and back

    @classmethod
    def of(cls, pieces: tuple[Piece, ...], tensors: Mapping[str, Tensor]) -> "BucketSpec":
        """Look up each piece's tensor; unknown names and ranges outside a tensor are refused."""
        rows, widths = [], []
        for name, start, stop in pieces:
            if name not in tensors:
                raise CommschedError(f"no tensor named {name!r} in the net")
            tensor = tensors[name]
            if not 0 <= start < stop <= tensor.numel:
                raise CommschedError(
                    f"elements [{start}, {stop}) of tensor {name!r}: allowed is 0 <= start < stop"
                    f" <= {tensor.numel}"
                )
            rows.append((tensor.sparsity, tensor.numel, start, stop))
            widths.append(tensor.numel // tensor.shape[0])
        lists = all(tensors[name].lists for name, *_ in pieces)
        return cls(tuple(rows), lists, tuple(widths))

    @classmethod
    def uniform(cls, numel: int, density: float = 1.0) -> "BucketSpec":
        """Make one tensor of `numel` elements, dense or with an evenly spread support."""
        law = Sparsity(law="uniform", density=density) if density < 1.0 else DENSE
        return cls(((law, numel, 0, numel),)) if numel else cls(())

    @cached_property
    def bounds(self) -> Ints:
        """Return where each piece begins in the bucket, and the end: (pieces + 1,)."""
        return np.cumsum([0, *(stop - start for _, _, start, stop in self.pieces)])

    @cached_property
    def numel(self) -> int:
        return sum(stop - start for _, _, start, stop in self.pieces)

    @property
    def content(self) -> "BucketSpec":
        """Return the spec of all buckets with as many elements, if the bucket is dense."""
        laws = {law for law, *_ in self.pieces}
        if laws != {Sparsity()}:
            return self
        return replace(self, pieces=((Sparsity(), self.numel, 0, self.numel),))

    def raw(self, start: Ints, stop: Ints) -> Floats:
        """Return the B of elements [start, stop) for a method that takes lists: (m,).

        4 an element, or 8 a non-zero of one rank if the gradient is a list.
        """
        if self.lists:
            return 8.0 * self.nonzeros(start, stop)
        return np.asarray(4.0 * (np.asarray(stop) - start), np.float64)

    @cached_property
    def all_raw(self) -> float:
        """Return the bytes of `raw` of the whole bucket."""
        if not self.lists:
            return 4.0 * self.numel
        return float(self.raw(self.bounds[:1], self.bounds[-1:])[0])

    def nonzeros(self, start: Ints, stop: Ints, merged: int | Ints = 1) -> Floats:
        """Return the expected non-zeros of elements [start, stop), `merged` ranks summed: (m,)."""
        shape = np.broadcast_shapes(np.shape(start), np.shape(stop), np.shape(merged))
        total = np.broadcast_to(np.asarray(stop) - start, shape).astype(np.float64)
        for i, (law, numel, first, _) in enumerate(self.pieces):
            if law.law == "dense":
                continue
            low, high = self.bounds[i], self.bounds[i + 1]
            lo = np.clip(start, low, high) - low + first
            hi = np.clip(stop, low, high) - low + first
            total += law.nonzeros(numel, lo, hi, merged) - (hi - lo)
        return total

    def filled(self, merged: int = 1) -> float:
        """Return the expected share of elements that are not zero, `merged` ranks summed."""
        count = float(self.nonzeros(self.bounds[:1], self.bounds[-1:], merged)[0])
        return count / max(self.numel, 1)

    @cached_property
    def density(self) -> float:
        """Return the expected share of elements that are not zero on one rank."""
        return self.filled()

    def log_empty(self, start: Ints, stop: Ints, merged: int | Ints = 1) -> Floats:
        """Return the log of the probability that elements [start, stop) are all zero: (m,)."""
        shape = np.broadcast_shapes(np.shape(start), np.shape(stop), np.shape(merged))
        total = np.zeros(shape)
        for law, numel, lo, hi in self._within(start, stop):
            total += law.log_empty(numel, lo, hi, merged)
        return total

    def runs(self, start: Ints, stop: Ints, merged: int | Ints = 1) -> Floats:
        """Return the expected runs of neighbouring non-zeros among elements [start, stop): (m,).

        The count is at most one too high per border of tensors.
        """
        shape = np.broadcast_shapes(np.shape(start), np.shape(stop), np.shape(merged))
        total = np.zeros(shape)
        for law, numel, lo, hi in self._within(start, stop):
            total += law.runs(numel, lo, hi, merged)
        return total

    def _within(self, start: Ints, stop: Ints) -> Iterator[tuple[Sparsity, int, Ints, Ints]]:
        """Yield each tensor's law and numel, and its elements among [start, stop): (m,) each."""
        for law, numel, first, low, high in self._parts:
            lo, hi = (np.clip(end, low, high) - low + first for end in (start, stop))
            yield law, numel, lo, hi

    @cached_property
    def _parts(self) -> list[tuple[Sparsity, int, int, int, int]]:
        """List law, tensor's numel, start in it, bounds in the bucket; dense neighbours are one."""
        found: list[tuple[Sparsity, int, int, int, int]] = []
        for (law, numel, first, _), low, high in zip(
            self.pieces, self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True
        ):
            if law.law == "dense" and found and found[-1][0].law == "dense":
                low = found.pop()[3]
            if law.law == "dense":
                numel, first = high - low, 0
            found.append((law, numel, first, low, high))
        return found

    def cuts(self, blocks: int) -> Ints:
        """Return the boundaries of `blocks` near-equal runs of elements: (blocks + 1,)."""
        return np.arange(blocks + 1) * self.numel // blocks

    def even_cuts(self, blocks: int, merged: int) -> Ints:
        """Return the boundaries of `blocks` runs with about equal non-zeros of `merged` ranks' sum.

        No row is cut; if all elements are alike, runs are equally long: (blocks + 1,).
        """
        laws = {law for law, *_ in self.pieces}
        if len(laws) < 2 and not any(law.law == "zipf" for law in laws):
            return self.cuts(blocks)
        zero = np.zeros_like(self._places)
        filled = self.nonzeros(zero, self._places, merged)
        place = np.interp(np.arange(blocks + 1) * filled[-1] / blocks, filled, self._places)
        found: Ints = np.rint(place / self.row).astype(np.int64) * self.row
        return found

    @cached_property
    def row(self) -> int:
        """Return the greatest row length, in elements, at which all pieces are whole rows."""
        found = 0
        for (law, numel, start, stop), at in zip(self.pieces, self.bounds.tolist(), strict=False):
            width = numel // law.rows if law.law == "zipf" and numel % law.rows == 0 else 1
            found = gcd(found, width, start, stop, at)
        return found or 1

    @cached_property
    def _places(self) -> Ints:
        """Return the elements between which non-zeros are about evenly spread, and both ends."""
        places = [self.bounds]
        for (law, numel, first, _), low, high in zip(
            self.pieces, self.bounds[:-1].tolist(), self.bounds[1:].tolist(), strict=True
        ):
            if law.law == "zipf":
                places.append(np.clip(low + GRID * numel - first, low, high).astype(np.int64))
        return np.unique(np.concatenate(places))
