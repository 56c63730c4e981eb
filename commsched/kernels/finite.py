"""Whether an array holds NaN or infinity, at the speed of one sum."""

from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import module_of

CHUNK = 1 << 18  # elements


def finite(values: Array) -> bool:
    """Tell whether all of (n,) float32 are finite numbers.

    A sum is finite only if every term is. One that is not may have overflowed: then look closely.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(values.sum())
    if np.isfinite(total):
        return True
    parts = range(0, len(values), CHUNK)
    return all(bool(np.isfinite(values[at : at + CHUNK]).all()) for at in parts)


def cleared(values: Array) -> Any:
    """Make float32 `values` zeros, in place, where any is no finite number; whether it was so.

    Of a device nobody waits: the answer is a number of the module, for later.
    """
    module = module_of(values)
    if module is not np:
        broken = ~np.isfinite(values).all()
        values[...] = module.where(broken, np.float32(0), values)
        return broken
    broken = not finite(values)
    if broken:
        values.fill(0)
    return broken
