"""Sums of rows of a table on a GPU. Twin of `rows.summed_rows`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides
from commsched.kernels.modules import module_of


def add_rows(ordered: Array, order: Array, values: Array, out: Array) -> None:
    """Add row order[k] of (m, width) float32 to row ordered[k] of zeros; `ordered` ascends."""
    index = ordered.astype(np.int64, copy=False), order.astype(np.int64, copy=False)
    values = module_of(values).ascontiguousarray(values)
    given = *index, np.int64(len(order)), values, np.int64(values.shape[1]), out
    launch("rows", "add_rows", strides(values.size), *given)
