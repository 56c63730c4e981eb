"""8-bit floats on a GPU. Twins of `eightbit.narrow` and `eightbit.look_up`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides
from commsched.kernels.modules import module_of


def narrow(
    values: Array, scale: float, mantissa: int, bias: int, largest: float, nan: int
) -> Array:
    """Round (n,) float32 times `scale` to a format: (n,) uint8."""
    out = module_of(values).empty(len(values), np.uint8)
    form = np.int32(mantissa), np.int32(bias), np.float32(largest), np.int32(nan)
    given = values, np.int64(len(values)), np.float32(scale), *form, out
    launch("eightbit", "narrow", strides(len(values)), *given)
    return out


def look_up(table: Array, codes: Array, out: Array, way: int) -> None:
    """Look (n,) uint8 up in a table of 256 float32, and put the values into `out` as `way` says."""
    held = module_of(out).asarray(table)
    given = held, codes, np.int64(len(out)), np.int32(way), out
    launch("eightbit", "look_up", strides(len(out)), *given)
