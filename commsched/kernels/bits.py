"""Pack small whole numbers into bytes without gaps, and unpack them."""

import numpy as np

from commsched.kernels.modules import Array, module_of

CHUNK = 1 << 16  # codes at a time: what is made on the way stays in the cache


def packed_bytes(count: int, width: int) -> int:
    """Bytes of `count` codes of `width` bits."""
    return (count * width + 7) // 8


def pack(codes: Array, width: int) -> Array:
    """(n,) unsigned codes below 2**width, width 1 to 32 -> (ceil(n width / 8),) uint8.

    Widths 1, 2, 4 and 8 put the first code into the lowest bits; others into the highest.
    """
    module = module_of(codes)
    if width == 8:
        return codes.astype(np.uint8, copy=False)
    if width in (1, 2, 4):
        per = 8 // width
        padded = codes.astype(np.uint8)
        if len(codes) % per:
            padded = module.zeros(-(-len(codes) // per) * per, np.uint8)
            padded[: len(codes)] = codes
        if width == 1:
            return module.packbits(padded, bitorder="little")
        return _fold(padded, width)
    if not len(codes):
        return module.zeros(0, np.uint8)
    parts = [_pack_any(codes[at : at + CHUNK], width) for at in range(0, len(codes), CHUNK)]
    return module.concatenate(parts)


def _fold(codes: Array, width: int) -> Array:
    """Join neighbours in pairs until bytes are full: (n,) uint8 of 2 or 4 bits each."""
    while width < 8:
        pairs = codes.view(np.uint16)  # the second of a pair lies 8 bits up
        codes = (pairs | (pairs >> np.uint16(8 - width))).astype(np.uint8)
        width *= 2
    return codes


def _pack_any(codes: Array, width: int) -> Array:
    module = module_of(codes)
    wide = codes.astype(">u4").view(np.uint8).reshape(-1, 4)
    return module.packbits(module.unpackbits(wide, axis=1)[:, 32 - width :])


def unpack(packed: Array, count: int, width: int) -> Array:
    """The first `count` codes again: (count,) uint8, or uint32 for widths above 8."""
    module = module_of(packed)
    packed = packed[: packed_bytes(count, width)]
    if width == 8:
        return packed
    if width == 1:
        return module.unpackbits(packed, count=count, bitorder="little")
    if width in (2, 4):
        return _unfold(packed, width)[:count]
    if not count:
        return module.zeros(0, np.uint8 if width < 8 else np.uint32)
    step = CHUNK * width // 8
    parts = [
        _unpack_any(packed[at * width // 8 :][:step], min(CHUNK, count - at), width)
        for at in range(0, count, CHUNK)
    ]
    return module.concatenate(parts)


def _unfold(packed: Array, width: int) -> Array:
    """One byte per code of 2 or 4 bits."""
    module = module_of(packed)
    out = module.empty((len(packed), 8 // width), np.uint8)
    mask = np.uint8((1 << width) - 1)
    for place in range(8 // width):
        np.bitwise_and(packed >> np.uint8(place * width), mask, out=out[:, place])
    return out.reshape(-1)


def _unpack_any(packed: Array, count: int, width: int) -> Array:
    module = module_of(packed)
    flat = module.unpackbits(packed, count=count * width).reshape(count, width)
    wide = module.zeros((count, 32), np.uint8)
    wide[:, 32 - width :] = flat
    codes = module.packbits(wide, axis=1).reshape(-1).view(">u4")
    return codes.astype(np.uint8 if width < 8 else np.uint32)
