"""Lists of indices and values in Elias-Fano code: two bits per index more than the entropy."""

from typing import Any

import numpy as np

from commsched.arrays import Array, Floats
from commsched.coding.packet import HEADER, count_of, flagged, fresh, require, tag_of
from commsched.kernels.bits import pack, pack_flags, packed_bytes, unpack
from commsched.kernels.compiled import compiled_list
from commsched.kernels.device import numbers
from commsched.kernels.exponents import EACH, open_values, pack_values
from commsched.kernels.modules import module_of

TAG = 0x53_41_49_4C_45  # "ELIAS"
NARROW = 1 << 56  # set in tags of lists whose values have exponents of four bits


def list_bytes(numel: Floats, expected: Floats, each: float | Floats = 4.0) -> Floats:
    """Return the expected bytes of packets: `expected` of `numel` values of `each` bytes: (m,)."""
    found: Floats = HEADER + np.minimum(
        index_bytes(numel, expected) + each * expected, each * numel
    )
    return found


def index_bytes(numel: Floats, expected: Floats) -> Floats:
    """Return the expected bytes of `expected` indices below `numel`: (m,).

    The smaller of Elias-Fano and a bitmap.
    """
    count = np.maximum(expected, 1.0)  # below 1: probability of a single index
    width = np.floor(np.log2(np.maximum(numel, 1.0) / count))
    # Rounding up to bytes adds 3.5 bits on average.
    planes = width // 8 * count + width % 8 * (count + 3.5) / 8
    high = (count + (numel - 1) / 2**width + 3.5) / 8
    found: Floats = np.minimum(planes + high, np.ceil(numel / 8)) * np.minimum(expected, 1.0)
    return found


def pack_list(index: Array, values: Array, numel: int, narrow: bool = False) -> Array:
    """Write ascending indices below `numel` and their values, (m,) each, as a packet."""
    count = len(index)
    way, size = _way(numel, count, narrow)
    if way == "dense" and count < numel:
        whole = module_of(values).zeros(numel, np.float32)
        whole[index] = values
        values = whole
    body = pack_values(values, numel) if narrow else values.view(np.uint8)
    if body is None:
        return pack_list(index, values if way != "dense" else values.take(index), numel)
    packet = fresh(TAG | NARROW * narrow, count, len(body) + size, values)
    start = HEADER + len(body)  # values come first, where they are aligned
    packet[HEADER:start] = body
    if way != "dense":
        write_index(index, numel, packet[start:])
    return packet


def write_index(index: Array, numel: int, packed: Array) -> None:
    """Write (m,) ascending indices below `numel` as `index_form` says."""
    count, module = len(index), module_of(packed)
    way, _ = index_form(numel, count)
    fast = compiled_list(packed, numel)
    if fast is not None:
        _write(fast, index.astype(np.int32, copy=False), numel, way, packed)
    elif way == "bitmap":
        flags = module.zeros(numel, np.bool_)
        flags[index] = True
        packed[:] = pack_flags(flags)
    elif count:
        width = _width(numel, count)
        low = packed_bytes(count, width)
        packed[:low] = pack(index & ((1 << width) - 1), width)
        flags = module.zeros(_high_bits(numel, count, width), np.bool_)
        flags[(index >> width) + module.arange(count)] = True
        packed[low:] = pack_flags(flags)


def _write(fast: Any, index: Array, numel: int, way: str, packed: Array) -> None:
    """Write (m,) int32 indices by compiled kernels."""
    width = _width(numel, len(index)) if way == "elias" else 0
    low = packed_bytes(len(index), width)
    (fast.write_fields if width in (2, 4) else fast.write_planes)(index, width, packed[:low])
    words = np.zeros(-(-8 * len(packed) // 64), np.uint64)
    fast.write_bits(index, width, int(way == "elias"), words)
    packed[low:] = words.view(np.uint8)[: len(packed) - low]


def _read(fast: Any, packed: Array, numel: int, way: str, index: Array) -> bool:
    """Fill (m,) int32 indices by compiled kernels; tell whether they are valid."""
    width = _width(numel, len(index)) if way == "elias" else 0
    low = packed_bytes(len(index), width)
    (fast.read_fields if width in (2, 4) else fast.read_planes)(packed[:low], width, index)
    words = np.zeros(-(-8 * len(packed) // 64), np.uint64)
    words.view(np.uint8)[: len(packed) - low] = packed[low:]
    return bool(fast.read_bits(words, width, int(way == "elias"), numel, index))


def open_list(packet: Array, numel: int) -> tuple[Array | slice, Array]:
    """Split a packet into indices, (m,) or all, and values."""
    what = f"an Elias-Fano list of {numel} elements"
    narrow = tag_of(packet) == TAG | NARROW
    count = count_of(packet, TAG | NARROW * narrow, numel, what)
    way, size = _way(numel, count, narrow)
    start = len(packet) - size
    kept = numel if way == "dense" else count
    values = values_of(packet, start, kept, numel if narrow else 0, what)
    if way == "dense":
        return slice(None), values
    return read_index(packet, start, numel, count, what), values


def values_of(packet: Array, stop: int, count: int, narrow: int, what: str) -> Array:
    """Return the `count` values before byte `stop`; `narrow`: the elements of a narrow list."""
    if narrow:
        values = open_values(packet[HEADER : max(HEADER, stop)], count, narrow)
        require(values is not None, packet, what)
        return values
    require(stop == HEADER + 4 * count, packet, what)
    return numbers(packet[HEADER:stop], np.float32)


def read_index(packet: Array, start: int, numel: int, count: int, what: str) -> Array:
    """Return the `count` indices that were written from byte `start` on to the end: (count,)."""
    way, _ = index_form(numel, count)
    fast = compiled_list(packet, numel)
    if fast is not None:
        listed = np.empty(count, np.int32)
        require(_read(fast, packet[start:], numel, way, listed), packet, what)
        return listed
    if way == "bitmap":
        return flagged(packet, start, numel, count, what)
    if count == 0:
        return module_of(packet).zeros(0, np.int64)
    width = _width(numel, count)
    low = packed_bytes(count, width)
    bits = _high_bits(numel, count, width)
    index = flagged(packet, start + low, bits, count, what)
    index -= module_of(packet).arange(count)
    index <<= width
    index |= unpack(packet[start : start + low], count, width)
    require(bool(index[-1] < numel and (index[1:] > index[:-1]).all()), packet, what)
    return index


def _way(numel: int, count: int, narrow: bool) -> tuple[str, int]:
    """Return the form of `count` indices among `numel` elements, and its bytes."""
    way, size = index_form(numel, count)
    each = EACH if narrow else 4
    return ("dense", 0) if size + each * count >= each * numel > 0 else (way, size)


def index_form(numel: int, count: int) -> tuple[str, int]:
    """Return the form of the indices and its bytes if not all values are sent."""
    width = _width(numel, count)
    size = packed_bytes(count, width) + packed_bytes(_high_bits(numel, count, width))
    way = "elias" if size <= packed_bytes(numel) else "bitmap"
    return way, min(size, packed_bytes(numel)) if count else 0


def _width(numel: int, count: int) -> int:
    """Return the low bits of each index: floor(log2(numel / count))."""
    return (numel // count).bit_length() - 1 if count else 0


def _high_bits(numel: int, count: int, width: int) -> int:
    return count + (numel - 1 >> width) if count else 0
