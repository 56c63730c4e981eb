"""The largest magnitudes of an array on a GPU. Twins of `select` and of `bits.set_bits`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import THREADS, start
from commsched.kernels.modules import module_of

TILE = 32 * THREADS  # elements of a block
DIGITS = ((20, 11), (10, 10), (0, 10))  # of a magnitude's word: places below, and width, in bits
VALUES = 2048  # of a digit, at most
BLOCKS = 1024  # blocks that count digits; each adds its counts to the common ones


def flagged(values: Array, least: int) -> tuple[Array, Array]:
    """Return where |x| of (n,) float32 reaches the word `least`: a bitmap, and ascending indices.

    The bitmap is (ceil(n / 32),) uint32, the first element in the lowest bit.
    """
    module, numel = module_of(values), len(values)
    words = module.empty(-(-numel // 32), np.uint32)
    counts = module.empty(tiles(numel) + 1, np.uint32)
    given = values, np.int64(numel), np.int32(least), words, counts
    start("select", "flag_above", tiles(numel), *given)
    scan(counts)
    return words, places(words.view(np.uint8), numel, counts)


def added_flagged(values: Array, lost: Array, least: int) -> tuple[Array, bool]:
    """Add `lost` to (n,) float32: indices of |x| >= word `least`; whether all are finite."""
    module, numel = module_of(values), len(values)
    words = module.empty(-(-numel // 32), np.uint32)
    counts, broken = module.empty(tiles(numel) + 1, np.uint32), module.zeros(1, np.uint32)
    given = values, lost, np.int64(numel), np.int32(least), words, counts, broken
    start("select", "add_flag_above", tiles(numel), *given)
    scan(counts)
    return places(words.view(np.uint8), numel, counts), not int(broken[0])


def set_bits(packed: Array, numel: int) -> Array:
    """Return ascending positions of the bits that are set among the first `numel`: (m,) int64."""
    counts = bit_counts(packed, numel)
    scan(counts)
    return places(packed, numel, counts)


def bit_counts(packed: Array, numel: int) -> Array:
    """Count the set bits of the first `numel` in each tile: (tiles + 1,), the last unwritten."""
    counts = module_of(packed).empty(tiles(numel) + 1, np.uint32)
    start("select", "count_set", tiles(numel), packed, np.int64(numel), counts)
    return counts


def scan(counts: Array) -> None:
    """Make the starts of (n + 1,) uint32 counts, their sum in the last place, in place."""
    start("select", "scan", 1, counts, np.int64(len(counts) - 1))


def tiles(numel: int) -> int:
    """Return the number of blocks for `numel` elements."""
    return -(-numel // TILE)


def ranked(words: Array, count: int) -> Array:
    """Return the `count`-th largest magnitude of (n,) int32 words: (1,) int32. 0 < count <= n."""
    module = module_of(words)
    chosen, counts = module.zeros(2, np.uint32), module.zeros(VALUES, np.uint32)
    chosen[1] = count
    blocks = min(-(-len(words) // THREADS), BLOCKS)
    for shift, width in DIGITS:
        digit = np.int32(shift), np.int32(width)
        start("select", "count_digits", blocks, words, np.int64(len(words)), chosen, *digit, counts)
        start("select", "choose_digit", 1, chosen, digit[1], counts)
    return chosen[:1].view(np.int32)


def places(packed: Array, numel: int, starts: Array) -> Array:
    """Return the positions of set bits, those of each tile from its start on: (m,) int64."""
    found = module_of(packed).empty(int(starts[-1]), np.int64)
    start("select", "write_places", tiles(numel), packed, np.int64(numel), starts, found)
    return found
