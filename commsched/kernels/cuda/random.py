"""Random numbers on a GPU. Twin of `random.Dither.next`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import launch, strides


def dither(done: np.uint32, low: np.uint32, high: np.uint32, out: Array) -> None:
    """Fill (m,) int32 from word number `done` on, for a key of two words."""
    launch("random", "dither", strides(len(out)), np.int64(len(out)), done, low, high, out)
