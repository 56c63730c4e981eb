"""The module that an array belongs to: NumPy, or CuPy where there is a device."""

import sys
from typing import Any

import numpy as np

from commsched.arrays import Array


def module_of(array: Array) -> Any:
    """The array's own module, so that what is made beside it lies where it lies."""
    return sys.modules[type(array).__module__.partition(".")[0]]


def on_host(array: Array) -> Array:
    """The values in NumPy."""
    return array if module_of(array) is np else array.get()


def beside(values: Array, like: Array) -> Array:
    """The values where another array lies."""
    module = module_of(like)
    if module_of(values) is module:
        return values
    return on_host(values) if module is np else module.asarray(on_host(values))
