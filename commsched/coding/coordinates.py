"""Coordinate lists: int32 indices and float32 values of the non-zeros, behind a header."""

import numpy as np

from commsched.arrays import Array
from commsched.coding.packet import HEADER, fresh
from commsched.errors import CommschedError

TAG = 0x00_4F_4F_43  # "COO"


def pack_coordinates(index: Array, values: Array, start: int = 0) -> Array:
    """Write ascending indices, counted from `start`, and their values, (nnz,) each, as a packet."""
    packet = fresh(TAG, len(index), 8 * len(index), values)
    body = packet[HEADER:]
    body[: 4 * len(index)].view(np.int32)[:] = index - start if start else index
    body[4 * len(index) :].view(np.float32)[:] = values
    return packet


def open_coordinates(packet: Array, numel: int) -> tuple[Array, Array]:
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
