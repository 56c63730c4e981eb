"""Whole numbers of few bits, packed into bytes without a loop over elements."""

from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.compiled import compiled_list
from commsched.kernels.device import device
from commsched.kernels.modules import module_of


def packed_bytes(count: int, width: int = 1) -> int:
    """Return the bytes of `count` codes of `width` bits; one bit each are a bitmap."""
    if width in (1, 2, 4, 8):
        return (count * width + 7) // 8
    return width // 8 * count + width % 8 * packed_bytes(count)


def pack_flags(flags: Array) -> Array:
    """(n,) bool or uint8 -> (ceil(n / 8),) uint8, the first element in the lowest bit."""
    gpu = device(flags)
    if gpu is not None:
        return gpu.bits.pack_flags(flags)
    return module_of(flags).packbits(flags, bitorder="little")


def unpack_flags(packed: Array, count: int) -> Array:
    """Read the first `count` flags: (count,) uint8, 0 or 1."""
    part = packed[: packed_bytes(count)]
    return module_of(packed).unpackbits(part, bitorder="little")[:count]


def set_bits(packed: Array, numel: int) -> Array:
    """Return ascending positions of the bits that are set among the first `numel`: (m,) int64."""
    gpu = device(packed)
    if gpu is not None:
        return gpu.select.set_bits(packed, numel)
    fast = compiled_list(packed, numel)
    if fast is not None:
        return _set_bits(fast, packed[: packed_bytes(numel)], numel)
    full = np.flatnonzero(packed != 0)
    if 4 * len(full) > len(packed):
        return _places(unpack_flags(packed, numel).view(np.bool_))
    index = np.flatnonzero(np.unpackbits(packed[full], bitorder="little").view(np.bool_))
    found = (full[index >> 3] << 3) + (index & 7)
    return found[: np.searchsorted(found, numel)]


def set_flags(flags: Array) -> Array:
    """Return ascending positions of True in (n,) bool: (m,) int64."""
    if compiled_list(flags, len(flags)) is None:
        return _places(flags)
    return set_bits(pack_flags(flags), len(flags))


def _set_bits(fast: Any, packed: Array, numel: int) -> Array:
    words = np.zeros(-(-numel // 64), np.uint64)
    words.view(np.uint8)[: len(packed)] = packed
    if numel % 64:
        words[-1] &= np.uint64((1 << numel % 64) - 1)
    out = np.empty(int(np.bitwise_count(words).sum()), np.int64)
    fast.set_bits(words, 0, out, 0)
    return out


def _places(flags: Array) -> Array:
    """Return ascending positions of True in (n,) bool, by the array's own module.

    NumPy looks for one after the other up to a density of 1/10, which takes longer than a loop
    without branches from a fiftieth on. So True is put behind the flags until they are dense.
    """
    count = np.count_nonzero(flags)
    if module_of(flags) is not np or not len(flags) < 50 * count <= 5 * len(flags):
        return np.flatnonzero(flags)
    return np.flatnonzero(np.append(flags, np.ones(len(flags) // 8, np.bool_)))[:count]


def pack(codes: Array, width: int) -> Array:
    """(n,) codes below 2**width, width 0 to 32 -> (packed_bytes,) uint8.

    Widths 1, 2, 4 and 8 put neighbours into one byte, the first into the lowest bits; others are
    planes: the low byte of all codes, the next byte, and then single bits as bitmaps.
    """
    if width == 8:
        return codes.astype(np.uint8, copy=False)
    gpu, module = device(codes), module_of(codes)
    if gpu is not None:
        return gpu.bits.pack(codes, width, packed_bytes(len(codes), width))
    if width == 1:
        return pack_flags(codes)
    if width in (2, 4):
        per = 8 // width
        padded = codes.astype(np.uint8)
        if len(codes) % per:
            padded = module.zeros(-(-len(codes) // per) * per, np.uint8)
            padded[: len(codes)] = codes
        return _fold(padded, width)
    count, at = len(codes), 0
    out = module.empty(packed_bytes(count, width), np.uint8)
    for plane in range(width // 8):
        out[at : at + count] = (codes >> (8 * plane)).astype(np.uint8)
        at += count
    if width % 8:
        rest, step = (codes >> (width // 8 * 8)).astype(np.uint8), packed_bytes(count)
        for bit in range(width % 8):
            out[at : at + step] = pack_flags(rest & np.uint8(1 << bit))
            at += step
    return out


def _fold(codes: Array, width: int) -> Array:
    """Join neighbours in pairs until bytes are full: (n,) uint8 of 2 or 4 bits each."""
    while width < 8:
        pairs = codes.view(np.uint16)  # the second of a pair is the high byte
        codes = (pairs | (pairs >> np.uint16(8 - width))).astype(np.uint8)
        width *= 2
    return codes


def unpack(packed: Array, count: int, width: int) -> Array:
    """Read the first `count` codes: (count,) uint8, or int64 for widths above 8."""
    packed = packed[: packed_bytes(count, width)]
    if width == 8:
        return packed
    gpu = device(packed)
    if gpu is not None:
        return gpu.bits.unpack(packed, count, width)
    if width in (2, 4):
        return _unfold(packed, width)[:count]
    module, at, step = module_of(packed), 0, packed_bytes(count)
    codes = module.zeros(count, np.int64 if width > 8 else np.uint8)
    for plane in range(width // 8):
        codes |= packed[at : at + count].astype(np.int64) << (8 * plane)
        at += count
    for bit in range(width // 8 * 8, width):
        codes |= unpack_flags(packed[at : at + step], count).astype(codes.dtype, copy=False) << bit
        at += step
    return codes


def _unfold(packed: Array, width: int) -> Array:
    """Return one byte per code of 2 or 4 bits."""
    module = module_of(packed)
    out = module.empty((len(packed), 8 // width), np.uint8)
    mask = np.uint8((1 << width) - 1)
    for place in range(8 // width):
        np.bitwise_and(packed >> np.uint8(place * width), mask, out=out[:, place])
    return out.reshape(-1)
