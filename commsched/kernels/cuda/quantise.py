"""Block quantisers on a GPU, one pass each. Twins of the codecs `quant`, `qsgd` and `terngrad`.

A run is cut as `codecs.blockwise` cuts it: pieces of whole blocks, up to 65536 values; the rest.
"""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides


def quant(
    values: Array, block: int, width: int, share: float, key: int | None, scales: Array, out: Array
) -> None:
    """Write codes of `width` bits; a step is `share` of a block's spread.

    key: of the random numbers; None: round to nearest.
    """
    run = _run(values, block, width)
    how = np.float64(share), np.int32(key is not None), *_words(key or 0)
    launch("quantise", "quant", len(scales), *run, *how, scales, out)


def levels(
    values: Array, block: int, width: int, count: int, above: float, key: int,
    scales: Array, out: Array,
) -> None:  # fmt: skip
    """Write codes of the multiples, up to `count`, of a share of each block's largest magnitude.

    above: factor by which a scale exceeds the largest magnitude.
    """
    how = np.int32(count), np.float64(above), *_words(key)
    launch("quantise", "levels", len(scales), *_run(values, block, width), *how, scales, out)


def quant_values(codes: Array, scales: Array, block: int, width: int, out: Array, way: int) -> None:
    """Put the values of `quant` codes into (n,) float32 `out` as `way` says."""
    run = np.int64(len(out)), np.int32(block), np.int32(width), np.int32(way)
    launch("quantise", "quant_values", strides(len(out)), codes, scales, *run, out)


def level_values(
    codes: Array, scales: Array, block: int, width: int, count: int, out: Array, way: int
) -> None:
    """Put the values of `levels` codes into (n,) float32 `out` as `way` says."""
    form = np.int32(block), np.int32(width), np.int32(count)
    run = np.int64(len(out)), *form, np.int32(way)
    launch("quantise", "level_values", strides(len(out)), codes, scales, *run, out)


def _run(values: Array, block: int, width: int) -> tuple[Array, np.int64, np.int32, np.int32]:
    return values, np.int64(len(values)), np.int32(block), np.int32(width)


def _words(key: int) -> tuple[np.uint32, np.uint32]:
    return np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
