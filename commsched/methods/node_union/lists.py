"""Lists of non-zeros on their way through a method: taken, cut, coded and stored."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import elias_fano as elias
from commsched.coding import runs
from commsched.coding.codec import State
from commsched.coding.coordinates import TAG as COORDINATES
from commsched.coding.coordinates import open_coordinates, pack_coordinates
from commsched.coding.packet import HEADER, tag_of
from commsched.coding.registry import CODECS
from commsched.kernels.exponents import EACH
from commsched.kernels.merge import Listed, listed
from commsched.kernels.modules import module_of
from commsched.net.bucket import BucketSpec

# Share of a run from which on lists keep float32; this method does not shorten the exponents of
# nearly dense gradients.
FULL = 0.5
ROOM = 1.125  # reserved entries over expected entries; more entries need a copy


def graded(count: int) -> Ints:
    """Return where each of `count` pieces begins, and the end, in units: (count + 1,).

    Pieces grow by a unit up to the middle and shrink again: the first piece is soon ready for the
    wire, little work is left after the last one, and there are few pieces.
    """
    place = np.arange(count)
    return np.append(0, np.cumsum(np.minimum(place, place[::-1]) + 1))


class Left:
    """Stores sums of blocks as they come, where the caller wants them: a list, or the gradient.

    Blocks of a list wait for the blocks before them. `cuts` (blocks + 1,) are the blocks' bounds.
    Memory for the `expected` entries is reserved at once: fresh pages cost more than entries.
    """

    def __init__(self, state: State, cuts: Ints, expected: float) -> None:
        self._cuts = cuts.tolist()
        self._waiting: dict[int, Listed] = {}
        self._next, self._count = 0, 0  # the next block of the list, and the entries so far
        self._gradient = None if "list" in state else state["gradient"]
        if self._gradient is None:
            numel = self._cuts[-1]
            size = min(numel, int(ROOM * expected) + 1)
            module = module_of(state["list"][1])
            self._index = module.empty(size, np.int32 if numel < 2**31 else np.int64)
            self._values = module.empty(size, np.float32)

    def put(self, block: int, part: Listed) -> None:
        """Store the sum of a block, an ascending list that counts from the block's start."""
        start, stop = self._cuts[block : block + 2]
        if self._gradient is not None:
            run = self._gradient[start:stop]
            run.fill(0)
            run[part.index] = part.values
            return
        self._waiting[block] = part
        while self._next in self._waiting:
            index, values = self._waiting.pop(self._next)
            first, last = self._count, self._count + len(index)
            start = self._cuts[self._next]
            if last > len(self._index):
                self._grow(last)
            self._index[first:last] = index
            self._index[first:last] += start
            self._values[first:last] = values
            self._next, self._count = self._next + 1, last

    def _grow(self, size: int) -> None:
        """Reserve twice the needed entries, at most one per element."""
        size = min(self._cuts[-1], 2 * size)
        for name in ("_index", "_values"):
            old = getattr(self, name)
            setattr(self, name, module_of(old).empty(size, old.dtype))
            getattr(self, name)[: self._count] = old[: self._count]

    def end(self, state: State) -> None:
        """Store the whole sum for the caller."""
        if self._gradient is not None:
            state["result"] = self._gradient
            return
        assert self._next == len(self._cuts) - 1, "not all blocks were left"
        state["list"] = Listed(self._index[: self._count], self._values[: self._count])


def opened(packet: Array, numel: int) -> Listed:
    """Return the list of a packet of any form."""
    tag = tag_of(packet) & ~elias.NARROW
    if tag == COORDINATES:
        return Listed(*open_coordinates(packet, numel))
    if tag == runs.TAG:
        return Listed(*runs.open_runs(packet, numel))
    index, values = elias.open_list(packet, numel)
    return listed(values) if isinstance(index, slice) else Listed(index, values)


def coded(found: Listed, numel: int) -> Array:
    """Return the smallest packet of a list of a run of `numel` elements, for the wire."""
    narrow = len(found.index) <= FULL * numel
    packet = _in_runs(found, numel, narrow=narrow)
    return elias.pack_list(*found, numel, narrow) if packet is None else packet


def coded_bytes(spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
    """Return the expected B of `coded` for runs [first, stop), `merged` ranks summed: (m,)."""
    numel = np.asarray(np.asarray(stop) - first, np.float64)
    filled = spec.nonzeros(first, stop, merged)
    each = np.where(filled <= FULL * numel, EACH, 4.0)
    whole = _runs_bytes(spec, first, stop, merged, each)
    return np.where(np.isnan(whole), elias.list_bytes(numel, filled, each), whole)


def compact(found: Listed, numel: int, start: int = 0) -> Array:
    """Return a packet of a list counted from `start` that is quick to write and read."""
    packet = _in_runs(found, numel, start)
    if packet is not None:
        return packet
    index, values = found
    if 2 * len(index) < numel:
        return pack_coordinates(index, values, start)
    return elias.pack_list(index - start if start else index, values, numel)


def compact_bytes(spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
    """Return the expected B of `compact` for runs [first, stop), `merged` ranks summed: (m,)."""
    filled = spec.nonzeros(first, stop, merged)
    whole = _runs_bytes(spec, first, stop, merged)
    plain = np.where(2 * filled < stop - first, HEADER + 8.0 * filled, np.nan)
    if np.isnan(plain).any():
        plain = np.where(np.isnan(plain), CODECS["elias"].nbytes(spec, first, stop, merged), plain)
    return np.where(np.isnan(whole), plain, whole)


def most_bytes(numel: int) -> int:
    """Return the most bytes of a packet of either kind: larger forms are never chosen."""
    return HEADER + 4 * numel


def _in_runs(found: Listed, numel: int, start: int = 0, narrow: bool = False) -> Array | None:
    """Return a list as runs of neighbours, if runs are long and dense values are not cheaper."""
    bounds = runs.bounds_of(found.index)
    if bounds is None:
        return None
    bounds -= start
    each = EACH if narrow else 4.0
    if runs.size_of(bounds, numel) + each * len(found.values) >= each * numel:
        return None
    return runs.pack(bounds, found.values, numel, narrow)


def _runs_bytes(
    spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints, each: float | Floats = 4.0
) -> Floats:
    """Return the expected B of lists as runs, `each` B per value; NaN where they are not: (m,)."""
    numel = np.asarray(np.asarray(stop) - first, np.float64)
    filled, count = spec.nonzeros(first, stop, merged), spec.runs(first, stop, merged)
    found = runs.nbytes(numel, count, filled, each)
    worth = (runs.LEAST * count <= filled) & (found < HEADER + each * numel)
    return np.where(worth, found, np.nan)
