"""Sums of rows of a table: the gradient of a look-up."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.device import device
from commsched.kernels.modules import module_of


def summed_rows(rows: int, index: Array, values: Array) -> Array:
    """Sum values (m, width) with the same index (m,), in their order: (rows, width).

    The n-th values of all rows are added at once, so that sums are equal on every module and run.
    """
    module, gpu = module_of(values), device(values)
    out = module.zeros((rows, values.shape[1]), values.dtype)
    if not len(index):
        return out
    order = module.argsort(index, kind="stable")
    ordered = index.take(order)
    if gpu is not None and values.dtype == np.float32:
        index = ordered.astype(np.int64, copy=False), order.astype(np.int64, copy=False)
        values = module.ascontiguousarray(values)
        given = *index, np.int64(len(order)), values, np.int64(values.shape[1]), out
        gpu.start("rows", "add_rows", gpu.strides(values.size), *given)
        return out
    place = module.arange(len(index))
    begins = place[1:][ordered[1:] != ordered[:-1]]
    begins = module.concatenate([place[:1], begins])
    run = module.searchsorted(begins, place, side="right") - 1
    turn = place - begins.take(run)  # number of earlier values of the row
    by_turn = module.argsort(turn, kind="stable")
    ends = np.cumsum(module.bincount(turn).tolist()).tolist()
    for start, stop in zip([0, *ends], ends, strict=False):
        these = order.take(by_turn[start:stop])
        out[index.take(these)] += values.take(these, axis=0)
    return out
