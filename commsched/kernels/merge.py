"""Sums of sparse lists: by flags in a range, or by merging where the range is nearly empty."""

from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Array
from commsched.kernels.compiled import compiled_list
from commsched.kernels.device import device
from commsched.kernels.modules import module_of
from commsched.kernels.select import nonzeros
from commsched.kernels.whole_rows import added

# From this many elements per entry, sorting the entries beats clearing a range and adding into it.
# Two processes on two cores, 524,288 elements: two lists, 1 in 10 taken, 0.6 ms against 0.8; 1 in
# 50, 0.16 against 0.32; four lists, 1 in 12, 0.7 against 0.9.
SPARSE = 12
# From this many elements per entry, sorting 4-byte indices beats scanning flags: 1 in 12, 0.39 ms
# against 0.47; 1 in 8, 0.36 against 0.31. Both measured on one core of an Intel Xeon
# (Sapphire Rapids), NumPy 2.4.
FLAGS = 10
# The compiled extra joins k lists one by one from JOIN k**2 elements per entry on.
# 262,144 elements: two lists, 1 in 20 taken, 0.14 ms against 0.16; 1 in 10, 0.28 against 0.15; four
# lists of 350,000 elements, 1 in 50, 0.31 against 0.17. On the same machine.
JOIN = 2


class Listed(NamedTuple):
    """Ascending, distinct indices and their values, (m,) each."""

    index: Array
    values: Array

    def part(self, start: int, stop: int) -> "Listed":
        """Return the entries in [start, stop), counted from `start`."""
        first, last = ends(self.index, (start, stop))
        if not start and last == len(self.index):
            return self
        return Listed(self.index[first:last] - start, self.values[first:last])


def ends(index: Array, cuts: npt.ArrayLike) -> list[int]:
    """Count the ascending indices before each of (m,) cuts; in their own type, uncopied."""
    found = np.searchsorted(index, module_of(index).asarray(np.asarray(cuts, index.dtype)))
    return found.tolist()  # type: ignore[no-any-return]


def without_zeros(found: Listed) -> Listed:
    """Leave out zeros, which sums may have."""
    if np.count_nonzero(found.values) == len(found.values):
        return found
    kept = np.flatnonzero(found.values)
    return Listed(found.index.take(kept), found.values.take(kept))


def listed(values: Array) -> Listed:
    """Return the non-zeros of (n,) float32; NaN is one."""
    index = nonzeros(values)
    return Listed(index, values.take(index))


def here(values: Array) -> bool:
    """Tell whether NumPy's own functions are the fastest: for arrays in host memory."""
    return module_of(values) is np and device(values) is None


def merged(lists: list[Listed], numel: int) -> Listed:
    """Add lists over [0, numel) in their order; zeros are dropped."""
    entries = sum(len(each.index) for each in lists)
    if len(lists) == 1:
        return lists[0]
    gpu = device(lists[0].values)
    if gpu is not None:
        return without_zeros(Listed(*gpu.merge.merged(lists, numel)))
    if not here(lists[0].values):
        total = module_of(lists[0].values).zeros(numel, np.float32)
        for index, values in lists:
            total[index] += values
        return listed(total)
    rows = added(lists)
    if rows is not None:
        return without_zeros(Listed(*rows))
    fast = compiled_list(lists[0].values, numel)
    if fast is not None and numel > JOIN * len(lists) ** 2 * entries:
        return reduce(partial(_joined, fast), lists)
    if fast is not None:
        total = np.zeros(numel, np.float32)
        for each in lists:
            fast.add_at(each.index, each.values, total)
        return _collected(fast, total, min(numel, entries))
    bits = 32 + (len(lists) - 1).bit_length()
    if numel > SPARSE * entries and numel << bits < 2**63:
        return _sorted(lists, bits)
    total = np.zeros(numel, np.float32)
    for index, values in lists:
        np.add.at(total, index.astype(np.intp, copy=False), values)
    if numel < FLAGS * entries or numel >= 2**31:
        return listed(total)
    keys = np.concatenate([each.index.astype(np.int32, copy=False) for each in lists])
    keys.sort()  # NumPy sorts with vector instructions
    index = keys.take(np.flatnonzero(np.diff(keys, prepend=np.int32(-1)))).astype(np.int64)
    return without_zeros(Listed(index, total.take(index)))


class SparseSum:
    """The sum over [0, numel) of lists that arrive one after the other; zeros are dropped.

    Once sums are long enough for a dense range of zeros, the range serves all later lists.
    """

    def __init__(self, first: Listed, numel: int) -> None:
        self._found: Listed | None = first
        self._numel = numel
        self._total: Array = None

    def add(self, part: Listed) -> None:
        if self._total is None:
            found = self.listed()
            entries = len(found.index) + len(part.index)
            if not here(part.values) or self._numel > SPARSE * entries:
                self._found = merged([found, part], self._numel)
                return
            self._total = np.zeros(self._numel, np.float32)
            self._put(found)
        self._put(part)
        self._found = None

    def _put(self, part: Listed) -> None:
        fast = compiled_list(part.values, self._numel)
        if fast is not None:
            fast.add_at(part.index, part.values, self._total)
        else:
            np.add.at(self._total, part.index.astype(np.intp, copy=False), part.values)

    def listed(self) -> Listed:
        """Return the sum so far as a list."""
        if self._found is None:
            fast = compiled_list(self._total, self._numel)
            self._found = listed(self._total) if fast is None else _collected(fast, self._total)
        return self._found


def _joined(fast: Any, one: Listed, other: Listed) -> Listed:
    """Add two lists by compiled kernels."""
    most = len(one.index) + len(other.index)
    index, values = np.empty(most, np.int32), np.empty(most, np.float32)
    near, far = (each.index.astype(np.int32, copy=False) for each in (one, other))
    words, others = one.values.view(np.int32), other.values.view(np.int32)
    count = fast.joined(near, words, far, others, index, values)
    return Listed(index[:count], values[:count])


def _collected(fast: Any, total: Array, most: int | None = None) -> Listed:
    """Return the non-zeros of a range, at most `most`, by compiled kernels."""
    size = len(total) if most is None else most
    index, values = np.empty(size, np.int32), np.empty(size, np.float32)
    count = fast.collected(total, index, values)
    return Listed(index[:count], values[:count])


def _sorted(lists: list[Listed], bits: int) -> Listed:
    """Sort words of index, list and value, which vector instructions do: O(entries).

    A word is index << bits, the number of the list << 32, and the value's 32 bits.
    """
    ends = np.cumsum([len(each.index) for each in lists]).tolist()
    words = np.empty(ends[-1], np.int64)
    for number, (each, end) in enumerate(zip(lists, ends, strict=True)):
        part = words[end - len(each.index) : end]
        np.left_shift(each.index, bits, out=part, dtype=np.int64)
        part |= number << 32
        part |= each.values.view(np.uint32)
    words.sort()
    values = words.astype(np.uint32).view(np.float32)
    index = words
    index >>= bits
    again = np.flatnonzero(index[1:] == index[:-1])
    if not len(again):
        return without_zeros(Listed(index, values))
    again += 1
    fresh = np.ones(len(index), np.bool_)
    fresh[again] = False
    place = np.flatnonzero(fresh)
    sums = values.take(place)
    np.add.at(sums, again - np.arange(1, len(again) + 1), values.take(again))
    return without_zeros(Listed(index.take(place), sums))
