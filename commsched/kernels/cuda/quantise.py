"""Block quantisers on a GPU, one pass each. Twins of the codecs `quant`, `qsgd` and `terngrad`.

A run is cut as `codecs.blockwise` cuts it: pieces of whole blocks, up to 65536 values; the rest.
"""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import MOST, start


def quant(
    values: Array, block: int, width: int, share: float, key: int | None, scales: Array, out: Array
) -> None:
    """Write codes of `width` bits; a step is `share` of a block's spread.

    key: of the random numbers; None: round to nearest.
    """
    run = values, *_run(len(values), block, width)
    how = np.float64(share), np.int32(key is not None), *_words(key or 0)
    start("quantise", "quant", len(scales), *run, *how, scales, out)


def levels(
    values: Array, block: int, width: int, count: int, above: float, key: int,
    scales: Array, out: Array,
) -> None:  # fmt: skip
    """Write codes of the multiples, up to `count`, of a share of each block's largest magnitude.

    above: factor by which a scale exceeds the largest magnitude.
    """
    how = np.int32(count), np.float64(above), *_words(key)
    start(
        "quantise",
        "levels",
        len(scales),
        values,
        *_run(len(values), block, width),
        *how,
        scales,
        out,
    )


def quant_values(codes: Array, scales: Array, block: int, width: int, out: Array, way: int) -> None:
    """Put the values of `quant` codes into (n,) float32 `out` as `way` says."""
    given = codes, scales, *_run(len(out), block, width), np.int32(way), out
    start("quantise", "quant_values", _rows(len(out), block), *given)


def level_values(
    codes: Array, scales: Array, block: int, width: int, count: int, out: Array, way: int
) -> None:
    """Put the values of `levels` codes into (n,) float32 `out` as `way` says."""
    run = *_run(len(out), block, width), np.int32(count), np.int32(way)
    start("quantise", "level_values", _rows(len(out), block), codes, scales, *run, out)


def _run(numel: int, block: int, width: int) -> tuple[np.int64, np.int64, np.int32, np.int32]:
    """Return a run's values, those in whole blocks, the values of a block, and the bits of each."""
    return np.int64(numel), np.int64(numel // block * block), np.int32(block), np.int32(width)


def _rows(numel: int, block: int) -> int:
    return min(-(-numel // block), MOST)


def _words(key: int) -> tuple[np.uint32, np.uint32]:
    return np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
