"""16-bit floats on a GPU. Twins of `half`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides


def narrow(kernel: str, values: Array, out: Array) -> None:
    """Write a kernel's results for (n,) float32 to (n,) uint16."""
    launch("half", kernel, strides(len(values), 8), values, np.int64(len(values)), out)


def widen(kernel: str, words: Array, out: Array, way: int) -> None:
    """Put a kernel's values of (n,) uint16 into (n,) float32 `out` as `way` says."""
    given = words, np.int64(len(words)), np.int32(way), out
    launch("half", kernel, strides(len(words), 4), *given)
