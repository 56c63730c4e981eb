"""The module that an array belongs to: NumPy, or CuPy where there is a device."""

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

Array = Any  # a NumPy or CuPy array


def module_of(array: Array) -> Any:
    """The array's own module, so that what is made beside it lies where it lies."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def numbers(part: Array, dtype: npt.DTypeLike) -> Array:
    """Bytes of a packet as numbers: a view; a copy on a device, which reads aligned ones only."""
    return part.view(dtype) if isinstance(part, np.ndarray) else part.copy().view(dtype)
