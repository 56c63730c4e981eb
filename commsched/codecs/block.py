"""Exact block-sparse packets: only blocks that hold a non-zero travel."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import Codec, State
from commsched.coding.packet import HEADER, count_of, flagged, fresh, require
from commsched.coding.registry import CODECS
from commsched.kernels.accumulate import ADD, REPLACE, put, put_at
from commsched.kernels.bits import pack_flags, packed_bytes
from commsched.kernels.device import numbers
from commsched.kernels.modules import module_of
from commsched.net.bucket import BucketSpec

TAG = 0x4B_43_4C_42  # "BLCK"
BLOCK = 256  # elements. Source: Fei et al., "OmniReduce", SIGCOMM 2021
SAMPLES = 1024  # blocks of a longer run that the prediction samples
CHUNK = 2**16  # elements that are scanned while they are in the cache


class Block(Codec):
    """Header, the numbers of sent blocks of 256 elements, and their float32 values.

    The blocks are named by one bit each or by their int32 numbers, whichever is smaller; both
    sides know from the count. Good if non-zeros lie together: rows of embeddings.
    Source: Fei et al., "OmniReduce", SIGCOMM 2021.
    """

    name = "block"
    lossless = True
    addable = True
    fixed = False
    encode_traffic = 1.5  # one scan, a byte per element written and read
    add_traffic = 3.0  # read values, read and write the sum
    decode_traffic = 1.0  # zero the run; the copy is small in comparison

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        flags = _hit(values)
        ids = np.flatnonzero(flags)
        blocks, whole = len(flags), len(values) // BLOCK
        kept = ids[: np.searchsorted(ids, whole)]
        tail = len(values) % BLOCK if len(kept) < len(ids) else 0
        index = _index_bytes(len(ids), blocks)
        packet = fresh(TAG, len(ids), index + 4 * (BLOCK * len(kept) + tail), values)
        if index == packed_bytes(blocks):
            packet[HEADER : HEADER + index] = pack_flags(flags)
        else:
            packet[HEADER : HEADER + index].view(np.int32)[:] = ids
        rows = values[: BLOCK * whole].reshape(-1, BLOCK)
        end = HEADER + index + 4 * BLOCK * len(kept)
        packet[HEADER + index : end] = rows[kept].reshape(-1).view(np.uint8)
        packet[end:] = values[len(values) - tail :].view(np.uint8)
        return packet

    def decode(self, packet: Array, out: Array) -> None:
        ids, body, tail = self._open(packet, len(out))
        out.fill(0)
        put_at(ids, body, out[: len(out) // BLOCK * BLOCK].reshape(-1, BLOCK), REPLACE)
        out[len(out) - len(tail) :] = tail

    def add(self, packet: Array, out: Array) -> None:
        ids, body, tail = self._open(packet, len(out))
        put_at(ids, body, out[: len(out) // BLOCK * BLOCK].reshape(-1, BLOCK), ADD)
        put(tail, out[len(out) - len(tail) :], ADD)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the bytes, exact for independent elements; beyond SAMPLES, of every k-th block."""
        start, stop, merged = np.broadcast_arrays(start, stop, merged)
        whole, tail = (stop - start) // BLOCK, (stop - start) % BLOCK
        most = min(max(2**16 // max(len(start), 1), 16), SAMPLES)
        step = np.maximum(1.0, whole / most)[:, np.newaxis]
        place = np.arange(min(most, int(whole.max(initial=0))))
        at = np.where(step > 1, np.floor((place + 0.5) * step), place).astype(np.int64)
        first = start[:, np.newaxis] + BLOCK * at
        last = np.where(at < whole[:, np.newaxis], first + BLOCK, first)  # none: certainly empty
        empty = spec.log_empty(first, last, np.broadcast_to(merged[:, np.newaxis], first.shape))
        full = np.sum(-np.expm1(empty) * step, axis=1)
        end = -np.expm1(spec.log_empty(stop - tail, stop, merged))
        index = np.minimum(4 * (full + end), ((stop - start + BLOCK - 1) // BLOCK + 7) // 8)
        found: Floats = HEADER + index + 4.0 * (BLOCK * full + tail * end)
        return found

    @staticmethod
    def _open(packet: Array, numel: int) -> tuple[Array, Array, Array]:
        """Split a packet: numbers of whole blocks (k,), their values (k, BLOCK), the rest's."""
        blocks = -(-numel // BLOCK)
        what = f"a list of blocks of {numel} elements"
        count = count_of(packet, TAG, blocks, what)
        index = _index_bytes(count, blocks)
        require(len(packet) >= HEADER + index, packet, what)
        if index == packed_bytes(blocks):
            ids = flagged(packet, HEADER, blocks, count, what)
        else:
            ids = packet[HEADER : HEADER + index].view(np.int32)
            inside = count == 0 or (ids[0] >= 0 and ids[-1] < blocks)
            require(bool(inside and (ids[1:] > ids[:-1]).all()), packet, what)
        kept = int(np.searchsorted(ids, numel // BLOCK))
        tail = numel % BLOCK if kept < count else 0
        require(len(packet) == HEADER + index + 4 * (BLOCK * kept + tail), packet, what)
        values = numbers(packet[HEADER + index :], np.float32)
        return ids[:kept], values[: BLOCK * kept].reshape(-1, BLOCK), values[BLOCK * kept :]


def _index_bytes(count: int, blocks: int) -> int:
    return min(4 * count, packed_bytes(blocks))


def _hit(values: Array) -> Array:
    """Tell which blocks hold a non-zero, (blocks,) bool; the last block may be short."""
    numel = len(values)
    whole = numel // BLOCK
    occupied = module_of(values).empty(-(-numel // BLOCK), np.bool_)
    for first in range(0, whole * BLOCK, CHUNK):
        chunk = values[first : min(first + CHUNK, whole * BLOCK)] != 0
        words = chunk.view(np.uint64).reshape(-1, BLOCK // 8)
        occupied[first // BLOCK : first // BLOCK + len(words)] = words.any(axis=1)
    if whole < len(occupied):
        occupied[whole] = (values[whole * BLOCK :] != 0).any()
    return occupied


CODECS.add("block")(Block())
