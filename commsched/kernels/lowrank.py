"""Products of wide and narrow matrices; sums of narrow ones have equal bits on every device."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.compiled import compiled
from commsched.kernels.device import device
from commsched.kernels.modules import module_of

# Elements of the product computed at a time, which fit into the cache with a term. The fastest of
# 1 << 15, 1 << 17 and single rows, for 2 M elements of rank 2 on one core of an AMD EPYC.
CHUNK = 1 << 17


def transposed_product(matrix: Array, columns: Array) -> Array:
    """Return M^T P, (cols, rank) float32, of M (rows, cols) and P (rows, rank)."""
    # A column of P at a time: NumPy's product of M^T takes twice as long.
    rows = columns.T.copy()
    return module_of(matrix).stack([rows[k] @ matrix for k in range(len(rows))], axis=1)


def spread(left: Array, right: Array, out: Array, values: Array | None = None) -> None:
    """Write P Q^T, or `values` (n,) minus P Q^T, to `out` (n,) float32, row after row.

    P = left (rows, rank) float32, Q = right (cols, rank), n <= rows cols. Each element is P_i1 Q_j1
    + P_i2 Q_j2 + ..., rounded after each step: a library's product chooses its fastest order of
    additions, which differs from processor to processor.
    """
    gpu, module = device(out), module_of(out)
    if gpu is not None:
        kernel, taken = ("spread", ()) if values is None else ("subtract", (values,))
        narrow = left.copy(), right.copy(), np.int32(left.shape[1]), np.int64(len(right))
        given = *narrow, np.int64(len(out)), *taken, out
        gpu.start("lowrank", kernel, gpu.strides(len(out)), *given)
        return
    rows, cols = len(left), len(right)
    lines, step = right.T.copy(), max(1, CHUNK // cols)
    fast = compiled(out)
    if fast is not None:
        fast.spread(left, lines, out[:0] if values is None else values, out)
        return
    both = module.empty((2, min(step, rows), cols), np.float32)
    for at in range(0, rows, step):
        some = left[at : at + step]
        total, term = both[:, : len(some)]
        np.multiply(some[:, :1], lines[0], out=total)
        for k in range(1, len(lines)):
            np.multiply(some[:, k : k + 1], lines[k], out=term)
            total += term
        place = slice(at * cols, min((at + len(some)) * cols, len(out)))
        found = total.reshape(-1)[: place.stop - place.start]
        if values is None:
            out[place] = found
        else:
            np.subtract(values[place], found, out=out[place])
