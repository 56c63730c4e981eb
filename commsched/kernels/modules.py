"""The module that an array belongs to: NumPy, or CuPy for an array on a device."""

import sys
from typing import Any

import numpy as np

from commsched.arrays import Array


def module_of(array: Array) -> Any:
    """Return the array's own module, so that new arrays are made in the same memory."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def on_host(array: Array) -> Array:
    """Return the values in NumPy."""
    return array if module_of(array) is np else array.get()


def beside(values: Array, like: Array) -> Array:
    """Return the values in the memory of another array."""
    module = module_of(like)
    if module_of(values) is module:
        return values
    return on_host(values) if module is np else module.asarray(on_host(values))
