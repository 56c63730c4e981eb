"""Compiled twins of `exponents.pack_values` and `exponents.open_values`: the same bytes."""

from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.jit import ONE, SIXTEEN, WORD, kernel

EXPONENT, SIGNED = np.uint32(23), np.uint32(24)
BYTES, MIDDLE, TOPMOST = np.uint32(255), np.uint32(127), np.uint32(128)
OTHERS = np.uint32(0x807FFFFF)  # all but the exponent
CODES, ESCAPED = 14, np.uint8(15)


@kernel
def exponents(words: Array) -> Any:
    """Return the largest exponent of (m,) uint32, and how many are too small for a code."""
    top, away = np.uint32(0), np.int64(0)
    for i in range(len(words)):
        top = max(top, (words[i] >> EXPONENT) & BYTES)
    least = np.uint32(max(np.int64(top) - np.int64(CODES - 1), np.int64(1)))
    for i in range(len(words)):
        each = (words[i] >> EXPONENT) & BYTES
        away += np.int64((each < least) & (each != np.uint32(0)))
    return top, away


@kernel
def write_values(
    words: Array, top: int, low: Array, middle: Array, codes: Array, escapes: Array
) -> None:
    """Write all parts of (m,) uint32 except the largest exponent."""
    count, found = len(words), 0
    each = np.zeros(2 * len(codes), np.uint8)
    lift = np.uint32((CODES - top) % 2**32)
    for i in range(count):
        word = words[i]
        low[i] = np.uint16(word)
        middle[i] = np.uint8(((word >> SIXTEEN) & MIDDLE) | ((word >> SIGNED) & TOPMOST))
        exponent = np.uint32((word >> EXPONENT) & BYTES)
        each[i] = np.uint8(np.uint32(exponent + lift) * np.uint32(exponent > np.uint32(0)))
    least = np.uint32(max(top - CODES + 1, 1))
    for group in range(0, count if len(escapes) else 0, WORD):
        stop, hit = min(group + WORD, count), np.uint32(0)
        for i in range(group, stop):
            exponent = np.uint32((words[i] >> EXPONENT) & BYTES)
            hit |= np.uint32(np.uint32(exponent - ONE) < np.uint32(least - ONE))
        for i in range(group, stop if hit else group):
            exponent = np.uint32((words[i] >> EXPONENT) & BYTES)
            if np.uint32(0) < exponent < least:
                each[i], escapes[found] = ESCAPED, exponent
                found += 1
    for pair in range(len(codes)):
        codes[pair] = np.uint8(each[2 * pair] | np.uint8(each[2 * pair + 1] << np.uint8(4)))


@kernel
def read_values(
    low: Array, middle: Array, codes: Array, top: int, escapes: Array, words: Array
) -> bool:
    """Fill (m,) uint32 from the output of `write_values`; tell whether the output is valid."""
    found, below = np.int64(0), np.int32(0)
    each = np.empty(2 * len(codes), np.uint8)
    for pair in range(len(codes)):
        each[2 * pair] = codes[pair] & np.uint8(15)
        each[2 * pair + 1] = codes[pair] >> np.uint8(4)
    drop = np.int32(top - CODES)
    for i in range(len(words)):
        code, high = np.int32(each[i]), np.uint32(middle[i])
        exponent = np.int32((code + drop) * np.int32(code > 0))
        below |= exponent
        found += np.int64(code == ESCAPED)
        words[i] = (
            np.uint32(low[i])
            | np.uint32((high & MIDDLE) << SIXTEEN)
            | np.uint32((high & TOPMOST) << SIGNED)
            | np.uint32(np.uint32(np.uint32(exponent) & BYTES) << EXPONENT)
        )
    if found != len(escapes) or below < 0:
        return False
    found = np.int64(0)
    for group in range(0, len(words) if len(escapes) else 0, WORD):
        stop, hit = min(group + WORD, len(words)), np.uint8(0)
        for i in range(group, stop):
            hit |= np.uint8(each[i] == ESCAPED)
        for i in range(group, stop if hit else group):
            if each[i] == ESCAPED:
                words[i] &= OTHERS
                words[i] |= np.uint32(np.uint32(escapes[found]) << EXPONENT)
                found += 1
    return True
