"""Exact coordinate lists: the indices and values of the non-zeros."""

import numpy as np

from commsched.coding.codec import Array, Floats, Ints, State
from commsched.coding.indexed import Indexed
from commsched.coding.packet import HEADER, fresh
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.kernels.select import nonzeros
from commsched.net.bucket import BucketSpec

TAG = 0x00_4F_4F_43  # "COO"


class Coo(Indexed):
    """Header, int32 indices in the run, float32 values; 8 B per non-zero.

    Good below a density of one half on one hop, less where sums fill up on the way.
    """

    name = "coo"
    lossless = True
    addable = True
    fixed = False
    encode_traffic = 1.0  # one scan; a sparse result is small beside it
    add_traffic = 2.0  # read index and value, read and write the sum
    decode_traffic = 1.0  # zero the run; the scatter is small beside it

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        index = nonzeros(values)
        return pack(index, values.take(index))

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return HEADER + 8.0 * spec.nonzeros(start, stop, merged)

    @staticmethod
    def open(packet: Array, numel: int) -> tuple[Array, Array]:
        """Split a packet into indices and values, both (nnz,)."""
        tag, count = packet[:HEADER].view(np.int64).tolist() if len(packet) >= HEADER else (0, 0)
        if tag != TAG or count < 0 or len(packet) != HEADER + 8 * count:
            raise CommschedError(f"a packet of {len(packet)} B is not a coordinate list")
        body = packet[HEADER:]
        index = body[: 4 * count].view(np.int32)
        ascending = (index[1:] > index[:-1]).all()
        if count and not ((index[0] >= 0) & (index[-1] < numel) & ascending):  # one read of a GPU
            raise CommschedError(
                f"a coordinate list must ascend within its run of {numel} elements; this one has"
                f" indices from {index.min()} to {index.max()}"
            )
        return index, body[4 * count :].view(np.float32)


def pack(index: Array, values: Array, start: int = 0) -> Array:
    """The packet of ascending indices, counted from `start`, and their values, (nnz,) each."""
    packet = fresh(TAG, len(index), 8 * len(index), values)
    body = packet[HEADER:]
    body[: 4 * len(index)].view(np.int32)[:] = index - start if start else index
    body[4 * len(index) :].view(np.float32)[:] = values
    return packet


CODECS.add("coo")(Coo())
