"""Bitmaps: one bit per element of a run and float32 values of the non-zeros, behind a header."""

import numpy as np

from commsched.arrays import Array
from commsched.coding.packet import HEADER, count_of, flagged, fresh, require
from commsched.kernels.bits import pack_flags, packed_bytes
from commsched.kernels.device import numbers
from commsched.kernels.modules import module_of

TAG = 0x50_41_4D_42  # "BMAP"


def packed(flags: Array, values: Array) -> Array:
    """Write packed flags and the values of those that are set, (m,) float32, as a packet."""
    packet = fresh(TAG, len(values), len(flags) + 4 * len(values), values)
    packet[HEADER : HEADER + len(flags)] = flags
    packet[HEADER + len(flags) :] = values.view(np.uint8)
    return packet


def pack_bitmap(index: Array, values: Array, numel: int) -> Array:
    """Write ascending indices below `numel` and their values, (m,) each, as a packet."""
    flags = module_of(values).zeros(numel, np.bool_)
    flags[index] = True
    return packed(pack_flags(flags), values)


def open_bitmap(packet: Array, numel: int) -> tuple[Array, Array]:
    """Split a packet into indices and values, both (nnz,)."""
    what = f"a bitmap of {numel} elements"
    count, end = count_of(packet, TAG, numel, what), HEADER + packed_bytes(numel)
    require(len(packet) == end + 4 * count, packet, what)
    return flagged(packet, HEADER, numel, count, what), numbers(packet[end:], np.float32)
