"""Bitmaps: one bit per element of a run and float32 values of the non-zeros, behind a header."""

import numpy as np

from commsched.arrays import Array
from commsched.coding.packet import HEADER, count_of, flagged, require
from commsched.kernels.bits import packed_bytes
from commsched.kernels.device import numbers

TAG = 0x50_41_4D_42  # "BMAP"


def open_bitmap(packet: Array, numel: int) -> tuple[Array, Array]:
    """Split a packet into indices and values, both (nnz,)."""
    what = f"a bitmap of {numel} elements"
    count, end = count_of(packet, TAG, numel, what), HEADER + packed_bytes(numel)
    require(len(packet) == end + 4 * count, packet, what)
    return flagged(packet, HEADER, numel, count, what), numbers(packet[end:], np.float32)
