"""Narrow matrices spread to a wide one on a GPU. Twin of `lowrank.spread`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides


def spread(left: Array, right: Array, out: Array, values: Array | None) -> None:
    """Write the product of left (rows, rank) and right (cols, rank) transposed to `out` (n,)."""
    narrow = left.copy(), right.copy(), np.int32(left.shape[1]), np.int64(len(right))
    kernel, taken = ("spread", ()) if values is None else ("subtract", (values,))
    launch("lowrank", kernel, strides(len(out)), *narrow, np.int64(len(out)), *taken, out)
