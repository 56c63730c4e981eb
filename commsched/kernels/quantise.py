"""The rounding of real numbers to whole numbers of even steps, at random or to the nearest."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.compiled import compiled
from commsched.kernels.modules import module_of
from commsched.kernels.random import Dither

UNITS = 65536  # units per step: a number is cut to units, then a random 16-bit number is added


class EvenSteps:
    """Rounds rows of values, up to `size` at a time, in reused memory.

    key: of the random numbers; None: round to nearest.
    """

    def __init__(self, key: int | None, size: int, like: Array) -> None:
        module = module_of(like)
        self._fine = module.empty(size, np.float32)
        self._whole = module.empty(size, np.int32)
        self._drawn = module.empty(0 if key is None else size, np.int32)
        self._dither = None if key is None else Dither(key, size, like)

    def numbers(self, values: Array, low: Array, inverse: Array, lift: int = 0) -> Array:
        """Return the steps to which (rows, width) float32 are rounded: (rows, width) uint8.

        floor(((x - low) inverse + lift + r) / UNITS); low, inverse: (rows, 1) float32, inverse in
        units per value; lift: units; r: random, or half a step. The caller must keep the
        results in [0, 255]; they are 0 if inverse is NaN.
        """
        noise = self._drawn[: values.size]
        if self._dither is None:
            lift += UNITS // 2
        else:
            self._dither.next(noise)
        out = module_of(values).empty(values.shape, np.uint8)
        fast = compiled(values.reshape(-1))
        if fast is not None:
            fast.numbers(values, low.reshape(-1), inverse.reshape(-1), np.int32(lift), noise, out)
        else:
            self._numbers(values, low, inverse, lift, noise, out)
        broken = np.isnan(inverse[:, 0])
        if broken.any():
            out[broken] = 0
        return out

    def _numbers(
        self, values: Array, low: Array, inverse: Array, lift: int, noise: Array, out: Array
    ) -> None:
        fine = self._fine[: values.size].reshape(values.shape)
        whole = self._whole[: values.size].reshape(values.shape)
        np.subtract(values, low, out=fine)
        np.multiply(fine, inverse, out=fine)
        whole[...] = fine
        if lift:
            np.add(whole, np.int32(lift), out=whole)
        if len(noise):
            np.add(whole, noise.reshape(values.shape), out=whole)
        np.right_shift(whole, np.int32(16), out=whole)
        out[...] = whole
