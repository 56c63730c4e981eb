"""The check of an array for NaN and infinity, at the speed of one sum."""

import math
from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import module_of

CHUNK = 1 << 18  # elements
FEW = 1 << 12  # elements


def finite(values: Array) -> bool:
    """Tell whether all of (n,) float32 are finite numbers.

    A finite sum has finite terms only. An infinite sum may be an overflow: then check each term.
    For few terms the squares are summed, by a routine that neither warns nor starts threads.
    """
    if len(values) <= FEW and module_of(values) is np:
        total = float(np.vdot(values, values))
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(values.sum())
    if math.isfinite(total):
        return True
    parts = range(0, len(values), CHUNK)
    return all(bool(np.isfinite(values[at : at + CHUNK]).all()) for at in parts)


def cleared(values: Array) -> Any:
    """Set all of float32 `values` to zero if one is not finite; tell whether that happened.

    The answer stays on the device as a number of the module, so that no thread waits for it.
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
