"""Ways to deliver decoded values: replace others, add to them, or subtract from them.

On a GPU our own kernels add: CuPy's would flush numbers below 2^-126.
"""

from collections.abc import Callable

import numpy as np

from commsched.arrays import Array
from commsched.kernels.device import device
from commsched.kernels.modules import module_of

REPLACE, ADD, TAKE_OFF = 0, 1, -1
CHUNK = 1 << 16  # values at a time: temporary arrays stay in the cache


def put(values: Array, out: Array, way: int) -> None:
    """Put values into (n,) float32 `out` as `way` says."""
    gpu = device(out)
    if way == REPLACE:
        out[:] = values
    elif gpu is not None:
        assert len(values) == len(out), f"{len(values)} values for {len(out)}"  # none is checked
        given = values, np.int64(len(out)), np.int32(way), out
        gpu.start("accumulate", "put", gpu.strides(len(out), 4), *given)
    elif way == ADD:
        out += values
    else:
        out -= values


def put_at(index: Array | slice, values: Array, out: Array, way: int) -> None:
    """Put values into the elements of (n,) float32 `out` at distinct indices (m,), or in a slice.

    Rows of `out` (n, width) take values (m, width).
    """
    gpu = device(out)
    if gpu is not None and not isinstance(index, slice):
        assert values.shape == (len(index), *out.shape[1:]), f"{values.shape} for {len(index)}"
        width = np.int64(out[:1].size)  # 1, or the width of a row
        given = index, values, np.int64(len(index)), width, np.int32(way), out
        gpu.start("accumulate", f"put_at_{index.dtype}", gpu.strides(values.size), *given)
    elif way == REPLACE:
        out[index] = values
    elif way == ADD:
        out[index] += values
    else:
        out[index] -= values


def in_chunks(write: Callable[[int, int, Array], object], out: Array, way: int) -> None:
    """Put the (stop - first,) float32 that `write` produces into elements [first, stop)."""
    room = module_of(out).empty(min(CHUNK, len(out)), np.float32)
    for first in range(0, len(out), CHUNK):
        stop = min(first + CHUNK, len(out))
        write(first, stop, room[: stop - first])
        put(room[: stop - first], out[first:stop], way)
