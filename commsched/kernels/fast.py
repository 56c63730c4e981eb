"""Kernels that NumPy takes too many passes for, compiled by Numba: the same bits in one pass.

Every kernel says whose twin it is. Words of 32 bits are cut back to 32 bits after each operation:
Numba would go on with 64. Compiled code is kept beside the source, or in the user's cache folder
where that cannot be written.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numba
import numpy as np

from commsched.kernels.modules import Array

Function = TypeVar("Function", bound=Callable[..., Any])

SIXTEEN = np.uint32(16)
THIRTEEN = np.uint32(13)
ONE = np.uint32(1)
MAGNITUDE = np.uint32(0x7FFFFFFF)
SIGN = np.uint32(0x8000)
LOW = np.uint32(0xFFFF)
INFINITE = np.uint32(0x7F800000)


def kernel(function: Function) -> Function:
    """Compile at the first call for each kind of array, without the interpreter's lock."""
    jit: Any = partial(numba.njit, nogil=True, error_model="numpy")
    made: Function
    try:
        made = jit(cache=True)(function)
    except RuntimeError:  # nowhere to keep compiled code
        made = jit()(function)
    return made


# --- Twin of `random.Dither.next`. ---

FIRST, SECOND = np.uint32(0x7FEB352D), np.uint32(0x846CA68B)
FIFTEEN = np.uint32(15)


@kernel
def dither(done: Any, low: Any, high: Any, out: Array) -> None:
    """Fill (m,) int32 from word number `done` on, for a key of two words, all uint32."""
    half = (len(out) + 1) // 2
    for i in range(half):
        word = np.uint32(np.uint32(done + np.uint32(i)) ^ low)
        word = np.uint32(word ^ (word >> SIXTEEN))
        word = np.uint32(np.uint32(word * FIRST) ^ high)
        word = np.uint32(word ^ (word >> FIFTEEN))
        word = np.uint32(np.uint32(word * SECOND) ^ high)
        word = np.uint32(word ^ (word >> SIXTEEN))
        out[i] = np.int32(word & LOW)
        if i + half < len(out):
            out[i + half] = np.int32(word >> SIXTEEN)


# --- Twin of `steps.numbers`. ---


@kernel
def numbers(values: Array, low: Array, inverse: Array, lift: Any, noise: Array, out: Array) -> None:
    """Round (rows, width) float32; `noise` has one int32 per value, or none at all."""
    rows, width = values.shape
    for row in range(rows):
        base, factor = low[row], inverse[row]
        if len(noise):
            drawn = noise[row * width : (row + 1) * width]
            for i in range(width):
                fine = np.int32(np.float32(np.float32(values[row, i] - base) * factor))
                out[row, i] = np.uint8(np.int32(fine + lift + drawn[i]) >> np.int32(16))
        else:
            for i in range(width):
                fine = np.int32(np.float32(np.float32(values[row, i] - base) * factor))
                out[row, i] = np.uint8(np.int32(fine + lift) >> np.int32(16))


# --- Twin of `select.above`. ---

WORD = 64  # elements whose comparisons make one word of bits
PAGE = 4096  # elements whose words are made before they are read
# A bit alone times this number has another 6 highest bits for each place. Source: Leiserson, Prokop
# & Randall, "Using de Bruijn sequences to index a 1 in a computer word", MIT, 1998.
BRUIJN = np.uint64(0x03F79D71B4CB0A89)
PLACE = np.zeros(WORD, np.int64)
for _place in range(WORD):
    PLACE[(int(BRUIJN) << _place) % 2**64 >> 58] = _place
LARGE = np.int32(0x7FFFFFFF)
UNIT = np.uint64(1)
TOP = np.uint64(58)


@kernel
def above(words: Array, least: Any, start: int, out: Array) -> int:
    """Write `start` + the places of (n,) int32 magnitudes from `least` on: how many there are."""
    count, whole = 0, len(words) // PAGE * PAGE
    hits = np.empty(PAGE // WORD, np.uint64)
    for page in range(0, whole, PAGE):
        for group in range(PAGE // WORD):
            bits = np.uint64(0)
            for i in range(WORD):
                hit = np.int32(words[page + WORD * group + i] & LARGE) >= least
                bits |= np.uint64(hit) << np.uint64(i)
            hits[group] = bits
        for group in range(PAGE // WORD):
            bits = hits[group]
            while bits:
                alone = bits & (~bits + UNIT)
                place = PLACE[np.uint64(alone * BRUIJN) >> TOP]
                out[count] = start + page + WORD * group + place
                count += 1
                bits ^= alone
    for i in range(whole, len(words)):
        if np.int32(words[i] & LARGE) >= least:
            out[count] = start + i
            count += 1
    return count


# --- Twins of `half`. ---

LEAST_HALF = np.uint32(0x38800000)  # 2**-14
BEYOND_HALF = np.uint32(0x477FF000)  # 65520
DOWN = np.uint32((0xFFF - (112 << 23)) % 2**32)
OTHER_BIAS = np.uint32(112 << 23)  # between the exponents of halves and of float32
STEPS = np.float32(2.0**24)  # of subnormal halves in 1
WHOLE = np.float32(2.0**23)  # added to a smaller number it leaves the nearest whole one


@kernel
def to_fp16(values: Array, words: Array, out: Array) -> None:
    """Round (n,) float32, given as numbers and as words, to (n,) uint16."""
    for i in range(len(values)):
        size = np.uint32(words[i] & MAGNITUDE)
        odd = np.uint32((size >> THIRTEEN) & ONE)
        code = np.uint32(np.uint32(np.uint32(size + odd) + DOWN) >> THIRTEEN)
        count = np.float32(np.float32(np.abs(values[i])) * STEPS)
        tiny = np.uint32(np.int32(np.float32(count + WHOLE) - WHOLE))
        if size < LEAST_HALF:
            code = tiny
        if size >= BEYOND_HALF:
            code = np.uint32(0x7BFF)
        if size == INFINITE:
            code = np.uint32(0x7C00)
        if size > INFINITE:
            code = np.uint32(0x7E00)
        out[i] = np.uint16(code | ((words[i] >> SIXTEEN) & SIGN))


@kernel
def from_fp16(codes: Array, out: Array) -> None:
    """(n,) uint16 -> (n,) float32 as words, uint32."""
    for i in range(len(codes)):
        code = np.uint32(codes[i])
        size = np.uint32(code & np.uint32(0x7FFF))
        word = np.uint32(np.uint32(size << THIRTEEN) + OTHER_BIAS)
        if size >= np.uint32(0x7C00):  # infinity and NaN
            word = np.uint32(word + OTHER_BIAS)
        small = np.float32(np.float32(np.int32(size)) / STEPS)
        if size < np.uint32(0x400):
            word = small.view(np.uint32)
        out[i] = np.uint32(word | np.uint32((code & SIGN) << SIXTEEN))


@kernel
def to_bf16(words: Array, out: Array) -> None:
    """Round (n,) float32, given as words, to (n,) uint16."""
    for i in range(len(words)):
        word = words[i]
        odd = np.uint32((word >> SIXTEEN) & ONE)
        code = np.uint32(np.uint32(np.uint32(word + odd) + np.uint32(0x7FFF)) >> SIXTEEN)
        if np.uint32(word & MAGNITUDE) > INFINITE:
            code = np.uint32(0x7FC0)
        out[i] = np.uint16(code)
