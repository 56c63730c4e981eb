"""Values with exponents of four bits: an eighth fewer bytes for values of similar magnitude."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.compiled import compiled_list
from commsched.kernels.device import numbers
from commsched.kernels.modules import module_of

EACH = 3.5  # bytes of a value whose exponent has a code
# Codes of an exponent: 0 for zeros and subnormals, 1 to TOP for exponents up to the largest one,
# ESCAPE for smaller exponents, which follow as bytes.
TOP, ESCAPE = 14, 15


def narrow_bytes(count: int) -> int:
    """Return the bytes of `count` values if no value escapes."""
    return 3 * count + (count + 1) // 2 + 1


def pack_values(values: Array, numel: int) -> Array | None:
    """Pack (m,) float32, of a list of `numel` elements, into uint8; None if that saves nothing.

    The order: the low 16 bits of all values; a byte each with sign and the other 7 bits; two
    codes of exponents per byte; the largest exponent; the exponents without a code.
    """
    fast = compiled_list(values, numel)
    words = values.view(np.uint32)
    count = len(words)
    if fast is not None:
        top, escaped = fast.exponents(words)
    else:
        high = values.view(np.uint16)[1::2].copy()
        exponent = ((high >> 7) & 0xFF).astype(np.uint8)
        top = int(exponent.max()) if count else 0
        away = (exponent < max(top - TOP + 1, 1)) & (exponent != 0)
        escaped = int(np.count_nonzero(away))
    size = narrow_bytes(count) + escaped
    if size >= 4 * count:
        return None
    packed = module_of(values).empty(size, np.uint8)
    low, middle, codes, escapes = _parts(packed, count)
    low = low.view(np.uint16)
    packed[narrow_bytes(count) - 1] = top
    if fast is not None:
        fast.write_values(words, top, low, middle, codes, escapes)
        return packed
    low[:] = values.view(np.uint16)[::2]
    middle[:] = (high & 0x7F) | ((high >> 8) & 0x80)
    escapes[:] = exponent[away]
    pairs = module_of(values).zeros((count + 1) // 2, np.uint16)
    each = pairs.view(np.uint8)[:count]
    each[:] = exponent + np.uint8((TOP - top) % 256)
    each[exponent == 0] = 0
    each[away] = ESCAPE
    codes[:] = (pairs | (pairs >> 4)).astype(np.uint8)
    return packed


def open_values(packed: Array, count: int, numel: int) -> Array | None:
    """Read the (count,) float32 of a list; None if its values are not packed."""
    size = narrow_bytes(count)
    if not size <= len(packed) < 4 * count:
        return None
    low, middle, codes, escapes = _parts(packed, count)
    low = numbers(low, np.uint16)
    top = int(packed[size - 1])
    values = module_of(packed).empty(count, np.float32)
    fast = compiled_list(values, numel)
    if fast is not None:
        right = fast.read_values(low, middle, codes, top, escapes, values.view(np.uint32))
        return values if right else None
    pairs = codes.astype(np.uint16)
    each = ((pairs & 0xF) | ((pairs & 0xF0) << 4)).view(np.uint8)[:count]
    exponent = each.astype(np.int16) + np.int16(top - TOP)
    exponent[each == 0] = 0
    away = each == ESCAPE
    if int(np.count_nonzero(away)) != len(escapes):
        return None
    if count and int(exponent.min()) < 0:
        return None
    exponent[away] = escapes
    wide = middle.astype(np.uint16)
    halves = values.view(np.uint16)
    halves[::2] = low
    halves[1::2] = (exponent.astype(np.uint16) << 7) | (wide & 0x7F) | ((wide & 0x80) << 8)
    return values


def _parts(packed: Array, count: int) -> tuple[Array, Array, Array, Array]:
    """Return where the parts of packed values lie: low bits, middle bits, codes, escapes."""
    size = narrow_bytes(count)
    low, rest = packed[: 2 * count], packed[2 * count :]
    return low, rest[:count], rest[count : size - 1 - 2 * count], rest[size - 2 * count :]
