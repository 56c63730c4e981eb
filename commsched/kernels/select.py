"""Find the largest magnitudes: by threshold, by rank, by a sample, by bisection."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.accumulate import ADD, put
from commsched.kernels.bits import pack_flags, packed_bytes, set_bits, set_flags
from commsched.kernels.compiled import compiled
from commsched.kernels.device import device
from commsched.kernels.finite_check import finite
from commsched.kernels.modules import module_of
from commsched.kernels.random import Dither

CHUNK = 1 << 17  # elements at a time: masks and magnitudes stay in the cache
SAMPLE = 1 << 15  # elements of a sampled threshold: an error of 6 % at a share of 1 %
MAGNITUDE = np.int32(0x7FFFFFFF)
# From this many elements a sample saves more than it takes. For shares from 0.1 to 5 %: 262,144
# elements 0.47 to 0.57 ms without and 0.64 to 0.85 with a sample, 1,048,576 elements 2.1 to 3.0 and
# 1.1 to 2.4 (one core of an AMD EPYC).
MANY = 1 << 19
COUNTED_BYTES = 4.0 + 1.0 + 1.0  # B moved to count a number: read it, write and read its flag
FEW = 8  # bisection drops all other elements once at most 1 in FEW can still be selected
TINY = np.float32(2.0**-149)  # below every magnitude but zero


def magnitudes(values: Array) -> Array:
    """Return the words of |x|, (n,) int32: ordered like the magnitudes, NaN above infinity."""
    return values.view(np.int32) & MAGNITUDE


def above(values: Array, threshold: float) -> Array:
    """Return the ascending indices of |x| >= threshold, NaN and infinity, but never of zero."""
    module, fast, gpu = module_of(values), compiled(values), device(values)
    least = np.maximum(np.float32(threshold), TINY).view(np.int32)
    if gpu is not None:
        return gpu.select.flagged(values, int(least))[1]
    words, size = values.view(np.int32), min(CHUNK, len(values))
    word, hit = module.empty(size, np.int32), module.empty(size, np.bool_)
    place = np.empty(0 if fast is None else size, np.int64)
    found = []
    for at in range(0, len(values), CHUNK):
        part = words[at : at + CHUNK]
        if fast is not None:
            found.append(place[: fast.above(part, least, at, place)].copy())
            continue
        here, mask = word[: len(part)], hit[: len(part)]
        np.bitwise_and(part, MAGNITUDE, out=here)
        np.greater_equal(here, least, out=mask)
        index = module.flatnonzero(mask)
        index += at
        found.append(index)
    return module.concatenate(found) if found else module.zeros(0, np.int64)


def added_above(values: Array, lost: Array, threshold: float) -> tuple[Array, bool]:
    """Add `lost` to values in place; return `above` of the sums, and whether all are finite."""
    gpu = device(values)
    if gpu is None:
        put(lost, values, ADD)
        return above(values, threshold), finite(values)
    least = np.maximum(np.float32(threshold), TINY).view(np.int32)
    index, whole = gpu.select.added_flagged(values, lost, int(least))
    return index, bool(whole)


def nonzeros(values: Array) -> Array:
    """Return the ascending indices of non-zeros, NaN included: (m,) int64."""
    return set_flags(values != 0) if device(values) is None else above(values, 0.0)


def set_apart(values: Array) -> tuple[Array, Array]:
    """Return a bitmap of the non-zeros, (ceil(n / 8),) uint8, and their ascending indices."""
    gpu = device(values)
    if gpu is None:
        flags = pack_flags(values != 0)
        return flags, set_bits(flags, len(values))
    words, index = gpu.select.flagged(values, int(TINY.view(np.int32)))
    return words.view(np.uint8)[: packed_bytes(len(values))], index


def threshold_of(values: Array, count: int) -> float:
    """Return the `count`-th largest magnitude; 0 if there are fewer values."""
    if not 0 < count <= len(values):
        return 0.0
    found = _sampled(values, count)
    words = magnitudes(values if found is None else values[found])
    return float(_ranked(words, count).view(np.float32)[0])


def _ranked(words: Array, count: int) -> Array:
    """Return the `count`-th largest of (n,) int32 magnitudes: (1,)."""
    gpu, module = device(words), module_of(words)
    if gpu is not None:
        return gpu.select.ranked(words, count)
    # Partitions are slow on mostly equal words, such as the zeros of sums of sparse gradients.
    some = int(module.count_nonzero(words))
    if count > some:
        return module.zeros(1, np.int32)
    if some < len(words) // 2:
        words = words[words != 0]
    at = len(words) - count
    return module.partition(words, at)[at : at + 1]


def largest(values: Array, count: int) -> Array:
    """Return the ascending indices of the `count` largest magnitudes, but of no zeros.

    Among equal magnitudes the first ones are taken.
    """
    return first_of(values, _likely(values, count), count)


def _likely(values: Array, count: int) -> Array:
    """Return ascending indices that include the `count` largest magnitudes, but no zeros."""
    found = _sampled(values, count)
    return above(values, threshold_of(values, count)) if found is None else found


def _sampled(values: Array, count: int) -> Array | None:
    """Return ascending indices that include the `count` largest magnitudes; None: unknown.

    A sample gives a threshold that a few more elements reach, so that only these are ranked.
    """
    if device(values) is None and len(values) >= MANY and count <= len(values) // 2:
        # Four standard deviations of a share of SAMPLE draws are at most 4 / sqrt(4 SAMPLE).
        share = count / len(values) + 2 / np.sqrt(SAMPLE)
        found = above(values, sampled_threshold(values, share, key=0))
        if len(found) >= count:
            return found
    return None


def first_of(values: Array, index: Array, count: int) -> Array:
    """Return the `count` largest of the elements at `index`, ascending: (<= count,)."""
    if len(index) <= count or count == 0:
        return index[:count]
    module = module_of(values)
    words = magnitudes(values[index])
    least = _ranked(words, count)
    keep = words > least
    ties = module.flatnonzero(words == least)
    keep[ties[: count - int(keep.sum())]] = True
    return index[keep]


def sampled_threshold(values: Array, share: float, key: int, lost: Array | None = None) -> float:
    """Return a threshold that about `share` of the magnitudes reach, from one element per stride.

    With `lost`, the threshold is for the sums with `lost`.
    The element of a stride is drawn at random, so that periodic values do no harm.
    Source: Lin et al., "Deep gradient compression", ICLR 2018.
    """
    module = module_of(values)
    stride = len(values) // SAMPLE
    if stride < 2:
        every = values if lost is None else values + lost
        return threshold_of(every, int(np.ceil(share * len(values))))
    at = Dither(key, SAMPLE, values).next(module.empty(SAMPLE, np.int32)).astype(np.int64)
    index = module.arange(SAMPLE) * stride + ((at * stride) >> 16)
    # A value exceeds the j-th largest of m drawn values with probability j / (m + 1).
    some = values[index] if lost is None else values[index] + lost[index]
    return threshold_of(some, max(1, round(share * (SAMPLE + 1))))


def count_nonzero(values: Array) -> int:
    """Count the non-zeros of (n,) float32; NaN is one.

    Reading them as flags first takes a half to a quarter of NumPy's time for numbers.
    """
    return int(module_of(values).count_nonzero(values != 0))


def count_above(words: Array, threshold: float) -> int:
    """Count the magnitudes, as words, that reach the threshold."""
    module = module_of(words)
    least = np.float32(threshold).view(np.int32)
    parts = range(0, len(words), CHUNK)
    return sum(int(module.count_nonzero(words[at : at + CHUNK] >= least)) for at in parts)


def bisected(values: Array, count: int, steps: int) -> Array:
    """Select about the `count` largest by bisection of a threshold between mean |x| and max |x|.

    All elements above the upper threshold are taken, then elements between the last two thresholds
    in order, up to `count`. Source: Shi et al., "Towards scalable distributed training of deep
    learning on public cloud clusters" (MSTopK), MLSys 2021, arXiv 2010.10458.
    """
    if not len(values):
        return above(values, 0.0)
    words = magnitudes(values)
    sizes = words.view(np.float32)
    high = float(sizes.max())
    if not np.isfinite(high):
        return above(values, np.inf)
    low, mean = 0.0, float(sizes.mean(dtype=np.float64))
    middle = mean
    for _ in range(steps):
        reached = count_above(words, middle)
        if reached > count:
            low = middle
            if FEW * reached < len(words):  # the others reach no later threshold
                words = words.take(above(words.view(np.float32), low))
        else:
            high = middle
        if reached == count:
            break
        middle = (low + high) / 2
    return _filled(values, above(values, high), above(values, low), count)


def _filled(values: Array, sure: Array, likely: Array, count: int) -> Array:
    """Return `sure` and the first of `likely`, `count` together, ascending."""
    module = module_of(values)
    if len(sure) > count:
        return first_of(values, sure, count)
    rest = likely[module.isin(likely, sure, invert=True, assume_unique=True)]
    return module.sort(module.concatenate([sure, rest[: count - len(sure)]]))
