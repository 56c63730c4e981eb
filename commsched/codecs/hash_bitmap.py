"""Exact bitmaps in the order of a hash, whose index sets both sides know: `hash-bitmap:PARTS`."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import State
from commsched.coding.indexed import Indexed
from commsched.coding.packet import HEADER, count_of, flagged, fresh, require
from commsched.coding.registry import CODECS
from commsched.kernels.bits import pack_flags, packed_bytes, set_bits
from commsched.kernels.device import numbers
from commsched.kernels.hashing import index_sets
from commsched.kernels.modules import module_of
from commsched.kernels.select import nonzeros
from commsched.net.bucket import BucketSpec

TAG = 0x50_4D_42_48  # "HBMP"
MOST_PARTS = 2**16


class HashBitmap(Indexed):
    """Header, one bit per element and float32 values, both part after part.

    I_p = {i : h0(i) = p} are the elements of part p, cached for every length of a run: 8 B per
    element. As large as a bitmap; but each part has equally many non-zeros, whatever their
    positions, so that PARTS readers have equal work.
    Source: Wang et al., "Zen", OSDI 2025; its pull sends the part of each owner separately.
    """

    standard = "hash-bitmap:16"
    lossless = True
    addable = True
    fixed = False
    encode_traffic = 2.5  # one scan, bytes of flags written, scattered into and scanned
    add_traffic = 4.5  # unpack bits, scan them, look indices up, gather and scatter
    decode_traffic = 2.0

    def __init__(self, parts: int) -> None:
        self.name = f"hash-bitmap:{parts}"
        self.parts = parts

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        module, numel = module_of(values), len(values)
        sets = index_sets(module, numel, self.parts)
        flags = module.zeros(numel, np.bool_)
        flags[sets.place.take(nonzeros(values))] = True
        packed = pack_flags(flags)
        kept = values.take(sets.order.take(set_bits(packed, numel)))
        size = len(packed)
        packet = fresh(TAG, len(kept), size + 4 * len(kept), values)
        packet[HEADER : HEADER + size] = packed
        packet[HEADER + size :] = kept.view(np.uint8)
        return packet

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return CODECS["bitmap"].nbytes(spec, start, stop, merged)

    def open(self, packet: Array, numel: int) -> tuple[Array, Array]:
        """Split a packet into indices, part after part, and values, both (nnz,)."""
        what = f"a hash bitmap of {numel} elements"
        count, end = count_of(packet, TAG, numel, what), HEADER + packed_bytes(numel)
        require(len(packet) == end + 4 * count, packet, what)
        place = flagged(packet, HEADER, numel, count, what)
        index = index_sets(module_of(packet), numel, self.parts).order.take(place)
        return index, numbers(packet[end:], np.float32)


@CODECS.family(HashBitmap.standard)
def hash_bitmap(parameters: list[str]) -> HashBitmap:
    """Read PARTS."""
    read.at_most(parameters, 1)
    return HashBitmap(read.whole(parameters[0], "the parts", 1, MOST_PARTS))
