"""One bit per value: the mean of a block's positives or of its negatives, with error feedback."""

import numpy as np

from commsched.codecs import CODECS
from commsched.codecs.base import Array
from commsched.codecs.blockwise import Blockwise


class OneBit(Blockwise):
    """A bit says whether a value is negative; both means of a block of 2048 travel.

    Source: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014 (there a column of a
    weight matrix is what is a block here).
    """

    name = standard = "onebit"
    block = 2048
    bits = 1
    columns = 2
    feedback = True
    encode_traffic = 6.0
    add_traffic = 100.0
    decode_traffic = 4.0

    def code(self, values: Array, dither: Array | None) -> tuple[Array, Array]:
        negative = values < 0
        total = values.sum(axis=1, dtype=np.float64)
        below = np.where(negative, values, np.float32(0)).sum(axis=1, dtype=np.float64)
        count = negative.sum(axis=1)
        width = values.shape[1]
        means = np.stack(
            [(total - below) / np.maximum(width - count, 1), below / np.maximum(count, 1)], axis=1
        )
        broken = ~np.isfinite(total) | ~np.isfinite(below)
        means[broken] = np.nan
        return means, negative

    def value(self, codes: Array, scales: Array, out: Array) -> None:
        out[...] = np.where(codes, scales[:, 1:], scales[:, :1])


CODECS.add("onebit")(OneBit())
