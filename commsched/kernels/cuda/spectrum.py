"""Spectra on a GPU. Twins of `spectrum`; passes over memory are counted in its first lines."""

from functools import cache
from typing import Any

import numpy as np

from commsched.kernels.cuda import select
from commsched.kernels.cuda.launch import launch, strides
from commsched.kernels.modules import Array, module_of

PIECE = 8192  # values of a block
Form = tuple[int, int, int]  # of a range float


def forward(values: Array, lost: Array | None, bins: Array) -> None:
    """Write the bins of whole pieces, (pieces 4097,) complex64; `lost` is added in place before."""
    table = roots(module_of(values))
    given = (values,) if lost is None else (values, lost)
    kernel = "forward" if lost is None else "add_forward"
    launch("spectrum", kernel, len(values) // PIECE, *given, table, bins)


def backward(bins: Array, values: Array, way: int) -> None:
    """Do with whole pieces and what their bins stand for what `way` says."""
    given = bins, roots(module_of(values)), np.int32(way), values
    launch("spectrum", "backward", len(values) // PIECE, *given)


@cache
def roots(module: Any) -> Array:
    """exp(-2 pi i m / 8192) for m from 0 to 2048: (2049,) complex64 of the module."""
    turns = np.arange(PIECE // 4 + 1) * (-2j * np.pi / PIECE)
    return module.asarray(np.exp(turns).astype(np.complex64))


def strongest(bins: Array, count: int, form: Form) -> tuple[Array, Array, Array]:
    """The largest magnitude, a bitmap of the `count` strongest bins, and codes of their parts."""
    module, numel = module_of(bins), len(bins)
    chosen, most = _ranked(bins, count)
    above, equal = (module.empty(-(-numel // 32), np.uint32) for _ in range(2))
    tiles = select.tiles(numel)
    starts, ties = (module.empty(tiles + 1, np.uint32) for _ in range(2))
    found = above, equal, starts, ties
    launch("spectrum", "flag_powers", tiles, bins, np.int64(numel), chosen, *found)
    select.scan(starts)
    select.scan(ties)
    scale, bitmap = module.empty(1, np.float32), module.empty(-(-numel // 8), np.uint8)
    codes = module.empty(2 * count, np.uint16)
    given = bins, np.int64(numel), chosen, most, *found, *map(np.int32, form)
    launch("spectrum", "write_strongest", tiles, *given, scale, bitmap, codes)
    return scale, bitmap, codes


def _ranked(bins: Array, count: int) -> tuple[Array, Array]:
    """The word of the least power that is kept, with how many of its equals are: (2,) uint32.

    And the word of the largest power: (1,).
    """
    module = module_of(bins)
    chosen, counts = module.zeros(2, np.uint32), module.zeros(select.VALUES, np.uint32)
    most = module.zeros(1, np.uint32)
    chosen[1] = count
    blocks = min(strides(len(bins)), select.BLOCKS)
    for shift, width in select.DIGITS:
        digit = np.int32(shift), np.int32(width)
        given = bins, np.int64(len(bins)), chosen, *digit, counts, most
        launch("spectrum", "count_powers", blocks, *given)
        launch("select", "choose_digit", 1, chosen, digit[1], counts)
    return chosen, most


def add_packet(
    bitmap: Array, packed: Array, count: int, scale: float, form: Form, fresh: bool, bins: Array
) -> bool:
    """Add a packet's bins to others, or make them of it; False where they are not `count`."""
    numel = len(bins)
    starts = select.bit_counts(bitmap, numel)
    select.scan(starts)
    if int(starts[-1]) != count:
        return False
    given = bitmap, np.int64(numel), starts, packed, np.int64(count), *map(np.int32, form)
    how = np.float32(scale), np.int32(fresh)
    launch("spectrum", "add_packet", select.tiles(numel), *given, *how, bins)
    return True
