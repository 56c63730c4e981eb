"""SAMO's passes on a GPU. Twins of `pruned`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.adam_constants import AdamConstants
from commsched.kernels.cuda.launch import launch, strides


def gather_add(gradient: Array, index: Array, packed: Array) -> None:
    """Add gradient[index] to `packed`: float16 as both are, index (n,) int32."""
    words = gradient.view(np.uint16), index, np.int64(len(index)), packed.view(np.uint16)
    launch("pruned", "gather_add", strides(len(index)), *words)


def scatter(values: Array, index: Array, half: Array) -> None:
    """Write (n,) float32 to half[index], float16."""
    words = values, index, np.int64(len(index)), half.view(np.uint16)
    launch("pruned", "scatter", strides(len(index)), *words)


def adam(
    arrays: tuple[Array, Array, Array, Array], divisor: float, rates: AdamConstants, steps: int
) -> None:
    """Adam's step number `steps` on gradient, values, mean and square, (n,) float32, in place."""
    one, numel = np.float32(1), len(arrays[0])
    moments = [
        (np.float32(share), one - np.float32(share), np.float32(1 - share**steps))
        for share in (rates.first, rates.second)
    ]
    last = np.float32(rates.rate), np.float32(rates.small)
    given = *arrays, np.int64(numel), np.float32(divisor), *moments[0], *moments[1], *last
    launch("pruned", "adam", strides(numel), *given)
