"""Whether an array holds NaN or infinity, at the speed of one sum."""

from typing import Any

import numpy as np

Array = Any  # a NumPy or CuPy array
CHUNK = 1 << 18  # elements


def finite(values: Array) -> bool:
    """Whether all of (n,) float32 are finite numbers.

    A sum is finite only if every term is. One that is not may have overflowed: then look closely.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values.sum())
    if np.isfinite(total):
        return True
    parts = range(0, len(values), CHUNK)
    return all(bool(np.isfinite(values[at : at + CHUNK]).all()) for at in parts)
