"""Additions on a GPU. Twins of `accumulate`; CuPy's own would flush numbers below 2^-126."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides


def put(values: Array, out: Array, way: int) -> None:
    """Add (n,) float32 to `out`, or subtract them."""
    assert len(values) == len(out), (
        f"{len(values)} values for {len(out)}"
    )  # a kernel does not check bounds
    given = values, np.int64(len(out)), np.int32(way), out
    launch("accumulate", "put", strides(len(out), 4), *given)


def put_at(index: Array, values: Array, out: Array, way: int) -> None:
    """Put values at distinct indices, of int32 or int64."""
    assert values.shape == (len(index), *out.shape[1:]), f"{values.shape} for {len(index)}"
    width = np.int64(out[:1].size)  # 1, or the width of a row
    given = index, values, np.int64(len(index)), width, np.int32(way), out
    launch("accumulate", f"put_at_{index.dtype}", strides(values.size), *given)
