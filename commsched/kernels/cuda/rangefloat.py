"""Floats over a chosen range on a GPU. Twins of `rangefloat.RangeFloat`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides
from commsched.kernels.modules import module_of


def encode(values: Array, bits: int, mantissa: int, base: int) -> Array:
    """(n,) float32 -> (n,) uint16."""
    return _converted("encode", values, (bits, mantissa, base), np.dtype(np.uint16))


def decode(codes: Array, bits: int, mantissa: int, base: int) -> Array:
    """(n,) uint8 or wider -> (n,) float32."""
    codes = codes.astype(np.uint16, copy=False)
    return _converted("decode", codes, (bits, mantissa, base), np.dtype(np.float32))


def _converted(way: str, given: Array, form: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    out = module_of(given).empty(len(given), dtype)
    numbers = map(np.int32, form)
    launch("rangefloat", way, strides(len(given)), given, np.int64(len(given)), *numbers, out)
    return out
