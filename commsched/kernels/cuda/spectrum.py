"""Spectra on a GPU. Twins of `spectrum`.

Memory traffic for a packet of 15 % of the bins with error feedback, in B per value of 4 B (a bin of
8 B stands for two values; tables stay in the cache, and a piece in shared memory):

    add, round, transform                  8 read,    8 written
    the digits of the powers, three times 12 read
    flags of the strongest bins            4 read,    0.1 written
    codes and bitmap                       2.0 read,  0.4 written  (half of all sectors of 32 B)
    packing, copies into the packet        0.5 read,  0.4 written
    subtracting what was sent              4.3 read,  4 written

44 B in all. The minimum is 12.25 B: read the gradient and the old loss, write the new loss and the
packet. Further memory: the spectrum, as large as the gradient, and a fifth of that.
"""

from functools import cache
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda import select
from commsched.kernels.cuda.launch import start, strides
from commsched.kernels.modules import module_of

PIECE = 8192  # values of a block
BINS = PIECE // 2 + 1
Form = tuple[int, int, int]  # of a range float


def forward(values: Array, lost: Array | None, bins: Array) -> None:
    """Write the bins of whole pieces, (pieces 4097,) complex64; `lost` is added in place before."""
    table = roots(module_of(values))
    given = (values,) if lost is None else (values, lost)
    kernel = "forward" if lost is None else "add_forward"
    start("spectrum", kernel, len(values) // PIECE, *given, table, bins)


@cache
def roots(module: Any) -> Array:
    """Return exp(-2 pi i m / 8192) for m from 0 to 2048: (2049,) complex64 of the module."""
    turns = np.arange(PIECE // 4 + 1) * (-2j * np.pi / PIECE)
    return module.asarray(np.exp(turns).astype(np.complex64))


def strongest(bins: Array, count: int, form: Form) -> tuple[Array, Array, Array]:
    """Return the largest magnitude, a bitmap of the `count` strongest bins, and their codes."""
    module, numel = module_of(bins), len(bins)
    chosen, most = _ranked(bins, count)
    above, equal = (module.empty(-(-numel // 32), np.uint32) for _ in range(2))
    tiles = select.tiles(numel)
    starts, ties = (module.empty(tiles + 1, np.uint32) for _ in range(2))
    found = above, equal, starts, ties
    start("spectrum", "flag_powers", tiles, bins, np.int64(numel), chosen, *found)
    select.scan(starts)
    select.scan(ties)
    scale, bitmap = module.empty(1, np.float32), module.empty(-(-numel // 8), np.uint8)
    codes = module.empty(2 * count, np.uint16)
    given = bins, np.int64(numel), chosen, most, *found, *map(np.int32, form)
    start("spectrum", "write_strongest", tiles, *given, scale, bitmap, codes)
    return scale, bitmap, codes


def _ranked(bins: Array, count: int) -> tuple[Array, Array]:
    """Return the word of the least kept power, and how many of its equals are kept: (2,) uint32.

    Also return the word of the largest power: (1,).
    """
    module = module_of(bins)
    chosen, counts = module.zeros(2, np.uint32), module.zeros(select.VALUES, np.uint32)
    most = module.zeros(1, np.uint32)
    chosen[1] = count
    blocks = min(strides(len(bins)), select.BLOCKS)
    for shift, width in select.DIGITS:
        digit = np.int32(shift), np.int32(width)
        given = bins, np.int64(len(bins)), chosen, *digit, counts, most
        start("spectrum", "count_powers", blocks, *given)
        start("select", "choose_digit", 1, chosen, digit[1], counts)
    return chosen, most


def deliver(
    packets: list[Array], count: int, form: Form, values: Array, way: int, rest: Array
) -> bool:
    """Put the sum of packets into whole pieces as `way` says.

    rest: bins behind the whole pieces; overwritten with their sums. False if a packet does not
    have `count` bins.
    """
    module, ways = module_of(values), len(packets)
    pieces, bins = len(values) // PIECE, len(values) // PIECE * BINS + len(rest)
    blocks = pieces + (len(rest) > 0)
    together = packets[0] if ways == 1 else module.concatenate(packets)
    starts = module.empty(ways * blocks + 1, np.uint32)
    size = np.int64(len(together) // ways)
    shape = np.int64(bins), np.int32(blocks), starts
    start("spectrum", "count_bins", ways * blocks, together, size, *shape)
    select.scan(starts)
    if starts[::blocks].tolist() != [number * count for number in range(ways + 1)]:
        return False
    given = together, size, np.int32(ways), np.int64(count), *shape, *map(np.int32, form)
    where = np.int64(len(values)), np.int32(way), values, rest
    start("spectrum", "deliver", blocks, *given, roots(module), *where)
    return True
