"""The module that an array belongs to: NumPy, or CuPy where there is a device."""

import sys
from typing import Any

Array = Any  # a NumPy or CuPy array


def module_of(array: Array) -> Any:
    """The array's own module, so that what is made beside it lies where it lies."""
    return sys.modules[type(array).__module__.partition(".")[0]]
