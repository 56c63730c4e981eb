"""One bit per value: the mean of a block's positives or of its negatives, with error feedback."""

import numpy as np

from commsched.arrays import Array
from commsched.coding.blockwise import Blockwise
from commsched.coding.registry import CODECS
from commsched.kernels.quantise import EvenSteps


class OneBit(Blockwise):
    """A bit says whether a value is negative; both means of a block of 2048 travel.

    Source: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014 (there a column of a
    weight matrix is a block).
    """

    name = standard = "onebit"
    block = 2048
    bits = 1
    columns = 2
    feedback = True
    encode_traffic = 6.0
    add_traffic = 100.0
    decode_traffic = 4.0

    def code(self, values: Array, steps: EvenSteps | None) -> tuple[Array, Array]:
        negative = values < 0
        # |x| + x is twice a positive value, and |x| - x twice a negative one's magnitude.
        total = values.sum(axis=1, dtype=np.float64)
        size = np.abs(values).sum(axis=1, dtype=np.float64)
        count = np.count_nonzero(negative, axis=1)
        above = (size + total) / 2 / np.maximum(values.shape[1] - count, 1)
        below = (total - size) / 2 / np.maximum(count, 1)
        means = np.stack([above, below], axis=1)
        broken = ~np.isfinite(size)
        means[broken] = np.nan
        return means, negative

    def value(self, codes: Array, scales: Array, out: Array) -> None:
        # Without a branch per value, which takes four times as long on values of mixed signs.
        above, below = scales.view(np.int32)[:, :1], scales.view(np.int32)[:, 1:]
        words = out.view(np.int32)
        np.multiply(codes, np.int32(-1), out=words)
        words &= above ^ below
        words ^= above


CODECS.add("onebit")(OneBit())
