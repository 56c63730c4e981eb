"""Exact bitmaps: one bit per element, and the values of the non-zeros."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.bitmaps import open_bitmap, pack_bitmap, packed
from commsched.coding.codec import State
from commsched.coding.indexed import Indexed
from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.kernels.merge import Listed
from commsched.kernels.select import set_apart
from commsched.net.bucket import BucketSpec


class Bitmap(Indexed):
    """Header, one bit per element of the run, float32 values.

    Smaller than a coordinate list above a density of 1/32, and than dense values below 31/32.
    Source: Wang et al., "Zen", OSDI 2025.
    """

    name = "bitmap"
    lossless = True
    addable = True
    fixed = False
    lists = True
    encode_traffic = 1.5  # one scan, a byte per element written and read; the bits are small
    add_traffic = 4.0  # unpack bits to bytes, scan them, gather and scatter
    decode_traffic = 1.5  # zero the run, unpack bits to bytes and scan them

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        flags, index = set_apart(values)
        return packed(flags, values.take(index))

    def pack(self, found: Listed, numel: int) -> Array:
        return pack_bitmap(*found, numel)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        bits = np.asarray(stop) - start
        found: Floats = HEADER + (bits + 7) // 8 + 4.0 * spec.nonzeros(start, stop, merged)
        return found

    def open(self, packet: Array, numel: int) -> tuple[Array, Array]:
        return open_bitmap(packet, numel)


CODECS.add("bitmap")(Bitmap())
