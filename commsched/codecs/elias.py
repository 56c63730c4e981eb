"""Exact lists whose indices take two bits more than their entropy: Elias-Fano."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.elias_fano import list_bytes, open_list, pack_list
from commsched.coding.indexed import Indexed
from commsched.coding.registry import CODECS
from commsched.kernels.merge import Listed
from commsched.net.bucket import BucketSpec


class Elias(Indexed):
    """Header, float32 values, indices; never more than a header larger than dense values.

    l = floor(log2(n / m)) low bits of each of m indices below n, as planes; then the high parts
    h_i as bits h_i + i of a bitmap of m + (n - 1 >> l) bits: about 2 + log2(n / m) bits per index.
    If one bit per element is smaller, the indices are a bitmap; if dense values are smaller, no
    index is written. The choice, and so the size, follows from n and m alone.
    Source: Elias, "Efficient storage and retrieval by content and address of static files",
    JACM 21(2), 1974; Fano, MIT Project MAC memorandum 61, 1971.
    """

    name = "elias"
    lossless = True
    addable = True
    fixed = False
    lists = True
    encode_traffic = 1.5  # one scan; packing few indices is small in comparison
    add_traffic = 6.0  # unpack bits and planes, gather and scatter
    decode_traffic = 1.0  # zero the run; the rest is small for sparse runs

    def pack(self, found: Listed, numel: int) -> Array:
        return pack_list(found.index, found.values, numel)

    def open(self, packet: Array, numel: int) -> tuple[Array, Array]:
        return open_list(packet, numel)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the bytes at the expected count, as bytes are nearly linear in the count."""
        numel = np.asarray(np.asarray(stop) - start, np.float64)
        return list_bytes(numel, spec.nonzeros(start, stop, merged))


CODECS.add("elias")(Elias())
