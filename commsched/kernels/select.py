"""Find the largest magnitudes: by threshold, by rank, by a sample, by bisection."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.bits import pack_flags, packed_bytes
from commsched.kernels.compiled import compiled
from commsched.kernels.device import device
from commsched.kernels.finite import finite
from commsched.kernels.modules import module_of
from commsched.kernels.random import Dither

CHUNK = 1 << 17  # elements at a time: masks and magnitudes stay in the cache
SAMPLE = 1 << 15  # elements that a sampled threshold looks at: 6 % off at 1 %
MAGNITUDE = np.int32(0x7FFFFFFF)
TINY = np.float32(2.0**-149)  # below every magnitude but zero


def magnitudes(values: Array) -> Array:
    """Return the words of |x|, (n,) int32: ordered like the magnitudes, NaN above infinity."""
    return values.view(np.int32) & MAGNITUDE


def above(values: Array, threshold: float) -> Array:
    """Ascending indices of |x| >= threshold, of NaN and infinity too, and never of zero."""
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
    """Add `lost` to values in place: `above` of the sums, and whether all of them are finite."""
    gpu = device(values)
    if gpu is None:
        values += lost
        return above(values, threshold), finite(values)
    least = np.maximum(np.float32(threshold), TINY).view(np.int32)
    index, whole = gpu.select.added_flagged(values, lost, int(least))
    return index, bool(whole)


def nonzeros(values: Array) -> Array:
    """Return the ascending indices of non-zeros, NaN included: (m,) int64."""
    return np.flatnonzero(values != 0) if device(values) is None else above(values, 0.0)


def set_apart(values: Array) -> tuple[Array, Array]:
    """A bitmap of what is not zero, (ceil(n / 8),) uint8, and its ascending indices, int64."""
    gpu = device(values)
    if gpu is None:
        flags = values != 0
        return pack_flags(flags), np.flatnonzero(flags)
    words, index = gpu.select.flagged(values, int(TINY.view(np.int32)))
    return words.view(np.uint8)[: packed_bytes(len(values))], index


def threshold_of(values: Array, count: int) -> float:
    """Return the `count`-th largest magnitude; 0 if there are fewer values."""
    if not 0 < count <= len(values):
        return 0.0
    return float(_ranked(magnitudes(values), count).view(np.float32)[0])


def _ranked(words: Array, count: int) -> Array:
    """Return the `count`-th largest of (n,) int32 magnitudes: (1,)."""
    gpu, module = device(words), module_of(words)
    if gpu is not None:
        return gpu.select.ranked(words, count)
    # A partition of mostly equal words, as sums of sparse gradients have, is 15 times as slow.
    some = int(module.count_nonzero(words))
    if count > some:
        return module.zeros(1, np.int32)
    if some < len(words) // 2:
        words = words[words != 0]
    at = len(words) - count
    return module.partition(words, at)[at : at + 1]


def largest(values: Array, count: int) -> Array:
    """Ascending indices of the `count` largest magnitudes, fewer where others are zero.

    Of equal magnitudes the first ones are taken.
    """
    return first_of(values, _likely(values, count), count)


def _likely(values: Array, count: int) -> Array:
    """Ascending indices of at least all of the `count` largest, as far as they are not zero.

    A sample says beyond which magnitude a few more than those lie, so that these alone are ranked;
    where it says too much, all are.
    """
    if device(values) is None and 2 * SAMPLE <= count <= len(values) // 2:
        # Among SAMPLE draws a share is off by less than 4 / sqrt(4 SAMPLE), all but surely.
        share = count / len(values) + 2 / np.sqrt(SAMPLE)
        found = above(values, sampled_threshold(values, share, key=0))
        if len(found) >= count:
            return found
    return above(values, threshold_of(values, count))


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
    """A threshold that about `share` of the magnitudes reach, from one element of each stride.

    Of the sums with `lost`, where that is given. Source: Lin et al., "Deep gradient compression",
    ICLR 2018. The element is drawn, so that no period of the values meets the stride.
    """
    module = module_of(values)
    stride = len(values) // SAMPLE
    if stride < 2:
        every = values if lost is None else values + lost
        return threshold_of(every, int(np.ceil(share * len(values))))
    at = Dither(key, SAMPLE, values).next(module.empty(SAMPLE, np.int32)).astype(np.int64)
    index = module.arange(SAMPLE) * stride + ((at * stride) >> 16)
    # Of m numbers drawn the j-th largest is exceeded with probability j / (m + 1).
    some = values[index] if lost is None else values[index] + lost[index]
    return threshold_of(some, max(1, round(share * (SAMPLE + 1))))


def count_above(words: Array, threshold: float) -> int:
    """Count the magnitudes, as words, that reach the threshold."""
    module = module_of(words)
    least = np.float32(threshold).view(np.int32)
    parts = range(0, len(words), CHUNK)
    return sum(int(module.count_nonzero(words[at : at + CHUNK] >= least)) for at in parts)


def bisected(values: Array, count: int, steps: int) -> Array:
    """About the `count` largest: bisection of the threshold between mean |x| and max |x|.

    What is surely among the largest is taken, and filled up to `count` from those between the last
    two thresholds, in order. Source: Shi et al., "Towards scalable distributed training of deep
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
        low, high = (middle, high) if reached > count else (low, middle)
        if reached == count:
            break
        middle = (low + high) / 2
    return _filled(values, above(values, high), above(values, low), count)


def _filled(values: Array, sure: Array, likely: Array, count: int) -> Array:
    """`sure`, and the first of `likely` beside them until there are `count`; all ascending."""
    module = module_of(values)
    if len(sure) > count:
        return first_of(values, sure, count)
    rest = likely[module.isin(likely, sure, invert=True, assume_unique=True)]
    return module.sort(module.concatenate([sure, rest[: count - len(sure)]]))
