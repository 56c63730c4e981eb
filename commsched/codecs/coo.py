"""Exact coordinate lists: the indices and values of the non-zeros."""

from commsched.arrays import Array, Floats, Ints
from commsched.coding.coordinates import open_coordinates, pack_coordinates
from commsched.coding.indexed import Indexed
from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.kernels.merge import Listed
from commsched.net.bucket import BucketSpec


class Coo(Indexed):
    """Header, int32 indices in the run, float32 values; 8 B per non-zero.

    Good below a density of one half on one hop, or below less if sums fill up on the way.
    """

    name = "coo"
    lossless = True
    addable = True
    fixed = False
    lists = True
    encode_traffic = 1.0  # one scan; a sparse result is small in comparison
    add_traffic = 2.0  # read index and value, read and write the sum
    decode_traffic = 1.0  # zero the run; the scatter is small in comparison

    def pack(self, found: Listed, numel: int) -> Array:
        return pack_coordinates(found.index, found.values)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return HEADER + 8.0 * spec.nonzeros(start, stop, merged)

    def open(self, packet: Array, numel: int) -> tuple[Array, Array]:
        return open_coordinates(packet, numel)


CODECS.add("coo")(Coo())
