"""The header of packets that describe themselves, and the checks of all their readers."""

from collections.abc import Sequence

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.kernels.bits import packed_bytes, set_bits
from commsched.kernels.modules import module_of

HEADER = 16  # B: the format's tag and a count, two little-endian 64-bit words


def header(words: Sequence[int], like: Array) -> Array:
    """Write 64-bit little-endian words in the memory of `like`: (8 words,) uint8."""
    written = np.array([word % 2**64 for word in words], np.uint64).view(np.uint8)
    found: Array = module_of(like).asarray(written)
    return found


def fresh(tag: int, count: int, body: int, like: Array) -> Array:
    """Make a packet in the memory of `like`, with a header and `body` bytes to fill."""
    packet = module_of(like).empty(HEADER + body, np.uint8)
    packet[:HEADER] = header((tag, count), like)
    return packet


def tag_of(packet: Array) -> int:
    """Return the format of a packet; 0 if the packet is too short to say."""
    return int(packet[:8].view(np.int64)[0]) if len(packet) >= HEADER else 0


def count_of(packet: Array, tag: int, most: int, what: str) -> int:
    """Return the count in a header; refuse another format, or a count outside [0, most]."""
    found, count = packet[:HEADER].view(np.int64).tolist() if len(packet) >= HEADER else (0, -1)
    require(found == tag and 0 <= count <= most, packet, what)
    return int(count)


def require(right: bool, packet: Array, what: str) -> None:
    """Refuse a packet that is not `what`, for instance "a bitmap of 9 elements"."""
    if not right:
        raise CommschedError(f"a packet of {len(packet)} B is not {what}")


def flagged(packet: Array, start: int, numel: int, count: int, what: str) -> Array:
    """Return the `count` positions in a bitmap of `numel` bits from byte `start`: (count,)."""
    flags = packet[start : start + packed_bytes(numel)]
    index, last = set_bits(flags, numel), numel % 8
    require(len(index) == count, packet, what)
    require(not last or int(flags[-1]) < 1 << last, packet, what)  # no bits beyond the last element
    return index
