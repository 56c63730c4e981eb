"""Floats of few bits over a chosen range: shortened float32 words, numbered from the least one.

A code below 2**(bits - 1) is the number of a positive value, from 1 for `least` on; 0 is zero; the
bit above stands for the sign. The paper does not define the following: |x| below `least`
becomes zero unless it rounds to `least`; |x| beyond the largest code is clamped; the sign bit with
number 0 is NaN.
Source: Wang et al., "FFT-based gradient sparsification", HPDC 2020, arXiv 1811.08596.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from commsched.arrays import Array
from commsched.kernels.device import device
from commsched.kernels.modules import module_of


class RangeFloat(NamedTuple):
    """A format of `bits` bits with `mantissa` bits after the leading one."""

    bits: int
    mantissa: int
    base: int  # the cut word of `least`

    @property
    def least(self) -> float:
        """Return the smallest positive number."""
        return float(np.array(self.base << (23 - self.mantissa), np.uint32).view(np.float32))

    @property
    def top(self) -> int:
        """Return the code of the largest number."""
        return (1 << (self.bits - 1)) - 1

    def encode(self, values: Array) -> Array:
        """Round (n,) float32 to nearest: (n,) uint16 codes."""
        gpu = device(values)
        if gpu is not None:
            return self._converted(gpu, "encode", values, np.uint16)
        words = values.view(np.uint32)
        shift = np.uint32(23 - self.mantissa)
        size = words & np.uint32(0x7FFFFFFF)
        rounded = (size + np.uint32(1 << (22 - self.mantissa))) >> shift
        code = np.clip(rounded.astype(np.int32) - (self.base - 1), 0, self.top)
        sign = ((words >> np.uint32(31)) << np.uint32(self.bits - 1)).astype(np.int32)
        code |= np.where(code > 0, sign, 0)
        broken = size > np.uint32(0x7F800000)
        return np.where(broken, 1 << (self.bits - 1), code).astype(np.uint16)

    def decode(self, codes: Array) -> Array:
        """(n,) codes -> (n,) float32."""
        gpu = device(codes)
        if gpu is not None:
            codes = codes.astype(np.uint16, copy=False)
            return self._converted(gpu, "decode", codes, np.float32)
        number = codes.astype(np.uint32) & np.uint32(self.top)
        sign = codes.astype(np.uint32) >> np.uint32(self.bits - 1)
        words = (number + np.uint32(self.base - 1)) << np.uint32(23 - self.mantissa)
        words |= sign << np.uint32(31)
        broken = np.where(sign > 0, np.float32(np.nan), np.float32(0))
        return np.where(number > 0, words.view(np.float32), broken)

    def _converted(self, gpu: Any, kernel: str, given: Array, dtype: npt.DTypeLike) -> Array:
        out = module_of(given).empty(len(given), dtype)
        numbers = np.int64(len(given)), *map(np.int32, self)
        gpu.start("rangefloat", kernel, gpu.strides(len(given)), given, *numbers, out)
        return out


def from_least(bits: int, mantissa: int, least: float) -> RangeFloat:
    """Return the format whose smallest positive number is `least`, cut to the mantissa."""
    word = int(np.array(least, np.float32).view(np.uint32))
    return RangeFloat(bits, mantissa, word >> (23 - mantissa))


def up_to(bits: int, mantissa: int, largest: float) -> RangeFloat:
    """Return the format whose largest number is `largest`, cut to the mantissa.

    word(least) = word(largest) - 2**(bits - 1) + 2 with words cut to the mantissa.
    """
    word = int(np.array(largest, np.float32).view(np.uint32))
    return RangeFloat(bits, mantissa, (word >> (23 - mantissa)) - 2 ** (bits - 1) + 2)
