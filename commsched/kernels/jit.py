"""The compilation of kernels by Numba, and the constants that kernels share.

Words of 32 bits are cut to 32 bits after each operation, because Numba computes with 64. Compiled
code is stored beside the source, or in the user's cache folder if the source's is read-only.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])

SIXTEEN = np.uint32(16)
THIRTEEN = np.uint32(13)
ONE = np.uint32(1)
MAGNITUDE = np.uint32(0x7FFFFFFF)
SIGN = np.uint32(0x8000)
LOW = np.uint32(0xFFFF)
INFINITE = np.uint32(0x7F800000)
WORD = 64  # elements compared together, as many as a word has bits


def kernel(function: Function) -> Function:
    """Compile at the first call for each kind of array, without the interpreter's lock."""
    jit: Any = partial(numba.njit, nogil=True, error_model="numpy")
    made: Function
    try:
        made = jit(cache=True)(function)
    except RuntimeError:  # nowhere to keep compiled code
        made = jit()(function)
    return made


def _lowest(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest 1 of a uint64 that is not 0: one instruction."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, True))

    return types.uint64(types.uint64), generate


lowest: Any = intrinsic(_lowest)
