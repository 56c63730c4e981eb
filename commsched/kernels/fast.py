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


# --- Twins of `bits.pack_flags` and `bits.set_bits`, and of the high bits of `elias`. ---

SIX, LAST = np.int64(6), np.int64(63)


@kernel
def write_bits(index: Array, width: int, step: int, words: Array) -> None:
    """Set bit (index >> width) + step * place for each of (m,) ascending indices.

    `words` are zero, uint64, and hold the first bit lowest.
    """
    at, word = np.int64(0), np.uint64(0)
    for i in range(len(index)):
        bit = np.int64(index[i] >> width) + step * i
        if bit >> SIX != at:
            words[at] = word
            at, word = bit >> SIX, np.uint64(0)
        word |= UNIT << np.uint64(bit & LAST)
    if len(index):
        words[at] = word


@kernel
def read_bits(words: Array, width: int, step: int, limit: int, out: Array) -> Any:
    """Add (bit - step * place) << width to (m,) int32 for each set bit; whether the list is right.

    It is where m bits are set and the indices ascend below `limit`.
    """
    place, before = 0, np.int64(-1)
    for at in range(len(words)):
        bits = words[at]
        while bits:
            alone = bits & (~bits + UNIT)
            bits ^= alone
            if place == len(out):
                return False
            bit = 64 * at + PLACE[np.uint64(alone * BRUIJN) >> TOP]
            index = np.int64(out[place]) + (np.int64(bit - step * place) << width)
            if index <= before:
                return False
            out[place] = np.int32(index)
            before = index
            place += 1
    return place == len(out) and before < limit


# --- Twins of `bits.pack` and `bits.unpack`. ---

ONES = np.uint64(0x0101010101010101)  # the lowest bit of each of 8 bytes
GATHER = np.uint64(0x0102040810204080)  # times such bits: the first one 56 places up, and so on
SPREAD = np.uint64(0x8040201008040201)  # bit k of byte k
BELOW = np.uint64(0x7F7F7F7F7F7F7F7F)  # added to a byte it sets the highest bit, but for 0
BYTE, SEVEN = np.uint64(56), np.uint64(7)


@kernel
def write_planes(index: Array, width: int, out: Array) -> None:
    """The lowest `width` bits of (m,) indices: bytes of all, then single bits as bitmaps."""
    count, whole = len(index), width // 8
    for plane in range(whole):
        for i in range(count):
            out[plane * count + i] = np.uint8(index[i] >> (8 * plane))
    at, size, shift = whole * count, (count + 7) // 8, 8 * whole
    part = np.zeros(8, np.uint8)
    eight = part.view(np.uint64)
    for group in range(size if width % 8 else 0):
        if 8 * group + 8 <= count:
            for i in range(8):
                part[i] = np.uint8(index[8 * group + i] >> shift)
        else:
            part[:] = 0
            for i in range(count - 8 * group):
                part[i] = np.uint8(index[8 * group + i] >> shift)
        for bit in range(width % 8):
            flags = np.uint64((eight[0] >> np.uint64(bit)) & ONES)
            out[at + bit * size + group] = np.uint8(np.uint64(flags * GATHER) >> BYTE)


@kernel
def read_planes(packed: Array, width: int, out: Array) -> None:
    """Fill (m,) int32 from what `write_planes` wrote."""
    count, whole = len(out), width // 8
    out[:] = 0
    for plane in range(whole):
        for i in range(count):
            out[i] |= np.int32(packed[plane * count + i]) << np.int32(8 * plane)
    at, size, shift = whole * count, (count + 7) // 8, np.int32(8 * whole)
    part = np.zeros(8, np.uint8)
    eight = part.view(np.uint64)
    for group in range(size if width % 8 else 0):
        word = np.uint64(0)
        for bit in range(width % 8):
            flags = np.uint64(packed[at + bit * size + group]) * ONES & SPREAD
            word |= ((np.uint64(flags + BELOW) >> SEVEN) & ONES) << np.uint64(bit)
        eight[0] = word
        if 8 * group + 8 <= count:
            for i in range(8):
                out[8 * group + i] |= np.int32(part[i]) << shift
        else:
            for i in range(count - 8 * group):
                out[8 * group + i] |= np.int32(part[i]) << shift


@kernel
def write_fields(index: Array, width: int, out: Array) -> None:
    """The lowest 2 or 4 bits of (m,) indices, neighbours in one byte, the first one lowest."""
    per, mask = 8 // width, np.int32((1 << width) - 1)
    whole = len(index) // per
    for byte in range(whole):
        joined = np.int32(0)
        for i in range(per):
            joined |= (np.int32(index[byte * per + i]) & mask) << np.int32(width * i)
        out[byte] = np.uint8(joined)
    if whole < len(out):
        joined = np.int32(0)
        for i in range(len(index) - whole * per):
            joined |= (np.int32(index[whole * per + i]) & mask) << np.int32(width * i)
        out[whole] = np.uint8(joined)


@kernel
def read_fields(packed: Array, width: int, out: Array) -> None:
    """Fill (m,) int32 from what `write_fields` wrote."""
    more, mask = (2 if width == 2 else 1), np.int32((1 << width) - 1)
    for i in range(len(out)):
        place = np.int32((i & ((1 << more) - 1)) * width)
        out[i] = (np.int32(packed[i >> more]) >> place) & mask


# --- Twins of `merge.merged`: two lists, or any number of them through a range of zeros. ---


@kernel
def joined(
    index: Array, values: Array, others: Array, terms: Array, found: Array, sums: Array
) -> Any:
    """Write the sum of two ascending lists, without zeros: how many entries it has.

    Values are words, int32, and sums float32: masks instead of branches, which nobody can foresee.
    """
    i, k, count, zero = np.int64(0), np.int64(0), np.int64(0), np.float32(0)
    while i < len(index) and k < len(others):
        left, right = index[i], others[k]
        first, second = np.int32(left <= right), np.int32(right <= left)
        one, other = np.int32(values[i] & -first), np.int32(terms[k] & -second)
        total = np.float32(one.view(np.float32) + other.view(np.float32))
        found[count], sums[count] = min(left, right), total
        count += np.int64(total != zero)
        i += np.int64(first)
        k += np.int64(second)
    for place in range(i, len(index)):
        total = np.int32(values[place]).view(np.float32)
        found[count], sums[count] = index[place], total
        count += np.int64(total != zero)
    for place in range(k, len(others)):
        total = np.int32(terms[place]).view(np.float32)
        found[count], sums[count] = others[place], total
        count += np.int64(total != zero)
    return count


@kernel
def add_at(index: Array, values: Array, total: Array) -> None:
    """Add (m,) values to (n,) float32."""
    for i in range(len(index)):
        total[index[i]] += values[i]


@kernel
def collected(total: Array, found: Array, sums: Array) -> int:
    """Write places and values of the non-zeros of (n,) float32: how many there are."""
    count, whole = 0, len(total) // WORD * WORD
    for group in range(0, whole, WORD):
        bits = np.uint64(0)
        for i in range(WORD):
            bits |= np.uint64(total[group + i] != 0) << np.uint64(i)
        while bits:
            alone = bits & (~bits + UNIT)
            place = group + PLACE[np.uint64(alone * BRUIJN) >> TOP]
            found[count], sums[count] = place, total[place]
            count += 1
            bits ^= alone
    for place in range(whole, len(total)):
        if total[place] != 0:
            found[count], sums[count] = place, total[place]
            count += 1
    return count


# --- Twins of `exponents.pack_values` and `exponents.open_values`. ---

EXPONENT, SIGNED = np.uint32(23), np.uint32(24)
BYTES, MIDDLE, TOPMOST = np.uint32(255), np.uint32(127), np.uint32(128)
OTHERS = np.uint32(0x807FFFFF)  # all but the exponent
CODES, ESCAPED = 14, np.uint8(15)


@kernel
def exponents(words: Array) -> Any:
    """The largest exponent of (m,) uint32, and how many are too small for a code."""
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
    """Write all parts of (m,) uint32 but the largest exponent."""
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
    """Fill (m,) uint32 from what `write_values` wrote; whether it is what may be written."""
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
