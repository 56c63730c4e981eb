"""The compiled twin of `lowrank.spread`: one pass over the result, whatever the rank."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.jit import kernel


@kernel
def spread(left: Array, lines: Array, values: Array, out: Array) -> None:
    """Write P Q^T to `out` (n,), or `values` minus it if these are not none; lines = Q^T."""
    rank, cols = lines.shape
    scratch = np.empty(cols, np.float32)
    for i in range((len(out) + cols - 1) // cols):
        here = out[i * cols : (i + 1) * cols]
        width = len(here)
        total = here
        if len(values):
            total = scratch[:width]
        line, factor = lines[0, :width], left[i, 0]
        for j in range(width):
            total[j] = factor * line[j]
        for k in range(1, rank):
            line, factor = lines[k, :width], left[i, k]
            for j in range(width):
                total[j] += factor * line[j]
        if len(values):
            there = values[i * cols : i * cols + width]
            for j in range(width):
                here[j] = there[j] - total[j]
