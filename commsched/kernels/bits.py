"""Integers as packed bits: a bitmap, and planes of low bits, without a loop over elements."""

from typing import Any

import numpy as np

Array = Any  # a NumPy or CuPy array


def bitmap_bytes(numel: int) -> int:
    """Bytes of one bit per element."""
    return (numel + 7) // 8


def pack_flags(flags: Array) -> Array:
    """(n,) bool -> (ceil(n / 8),) uint8, the first element in the lowest bit."""
    return np.packbits(flags, bitorder="little")


def set_bits(packed: Array, numel: int) -> Array:
    """Ascending positions of the bits that are set among the first `numel`: (m,) int64."""
    full = np.flatnonzero(packed != 0)
    if 4 * len(full) > len(packed):
        flags = np.unpackbits(packed, count=numel, bitorder="little")
        return np.flatnonzero(flags.view(np.bool_))  # as bytes it takes four times as long
    index = np.flatnonzero(np.unpackbits(packed[full], bitorder="little").view(np.bool_))
    found = (full[index >> 3] << 3) + (index & 7)
    return found[: np.searchsorted(found, numel)]


def count_bits(packed: Array) -> int:
    """Number of bits that are set, those past the last element included."""
    words = len(packed) // 8 * 8
    many = np.bitwise_count(packed[:words].view(np.uint64)).sum(dtype=np.int64)
    return int(many + np.bitwise_count(packed[words:]).sum(dtype=np.int64))


def planes_bytes(count: int, width: int) -> int:
    """Bytes of `count` integers of `width` bits as planes: whole bytes first, then single bits."""
    return width // 8 * count + width % 8 * bitmap_bytes(count)


def pack_planes(values: Array, width: int, out: Array) -> None:
    """Write the low `width` bits of (m,) integers to `out`, (planes_bytes,) uint8."""
    count, at = len(values), 0
    for plane in range(width // 8):
        out[at : at + count] = (values >> (8 * plane)).astype(np.uint8)
        at += count
    rest = (values >> (width // 8 * 8)).astype(np.uint8)
    step = bitmap_bytes(count)
    for bit in range(width % 8):
        out[at : at + step] = pack_flags(rest & np.uint8(1 << bit))
        at += step


def unpack_planes(packed: Array, count: int, width: int) -> Array:
    """Read what `pack_planes` wrote: (count,) int64."""
    values, at = np.zeros(count, np.int64), 0
    for plane in range(width // 8):
        values |= packed[at : at + count].astype(np.int64) << (8 * plane)
        at += count
    rest, step = np.zeros(count, np.uint8), bitmap_bytes(count)
    for bit in range(width % 8):
        flags = np.unpackbits(packed[at : at + step], count=count, bitorder="little")
        rest |= flags << np.uint8(bit)
        at += step
    values |= rest.astype(np.int64) << (width // 8 * 8)
    return values
