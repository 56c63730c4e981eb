"""Kernels compiled by Numba, which need one pass where NumPy needs several; equal bits.

A comment before each kernel names its twin in NumPy.
"""

from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.fast_exponents import exponents as exponents
from commsched.kernels.fast_exponents import read_values as read_values
from commsched.kernels.fast_exponents import write_values as write_values
from commsched.kernels.jit import (
    INFINITE,
    LOW,
    MAGNITUDE,
    ONE,
    SIGN,
    SIXTEEN,
    THIRTEEN,
    WORD,
    kernel,
    lowest,
)

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


# --- Twins of `bits.set_bits` and `select.above`. ---

PAGE = 4096  # elements per page: words are written first, then read
LARGE = np.int32(0x7FFFFFFF)
UNIT = np.uint64(1)
FULL = ~np.uint64(0)


@kernel
def set_bits(words: Array, start: int, out: Array, count: int) -> int:
    """Write `start` + places of ones in (n,) uint64, the lowest bit first, behind `count` others.

    Returns the new count.
    """
    for at in range(len(words)):
        bits, first = words[at], start + WORD * at
        if bits == FULL:
            for place in range(WORD):
                out[count + place] = first + place
            count += WORD
            continue
        while bits:
            out[count] = first + np.int64(lowest(bits))
            count += 1
            bits &= bits - UNIT
    return count


@kernel
def above(words: Array, least: Any, start: int, out: Array) -> int:
    """Write `start` + places of (n,) int32 magnitudes from `least` on; return their number."""
    count, whole = 0, len(words) // PAGE * PAGE
    hits = np.empty(PAGE // WORD, np.uint64)
    for page in range(0, whole, PAGE):
        for group in range(PAGE // WORD):
            bits = np.uint64(0)
            for i in range(WORD):
                hit = np.int32(words[page + WORD * group + i] & LARGE) >= least
                bits |= np.uint64(hit) << np.uint64(i)
            hits[group] = bits
        count = set_bits(hits, start + page, out, count)
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
WHOLE = np.float32(2.0**23)  # added to a smaller number, it rounds to a whole number


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
    """Add (bit - step * place) << width to (m,) int32 for each set bit; tell if the list is valid.

    It is valid if m bits are set and the indices ascend below `limit`.
    """
    place, before = 0, np.int64(-1)
    for at in range(len(words)):
        bits = words[at]
        while bits:
            if place == len(out):
                return False
            bit = 64 * at + np.int64(lowest(bits))
            bits &= bits - UNIT
            index = np.int64(out[place]) + (np.int64(bit - step * place) << width)
            if index <= before:
                return False
            out[place] = np.int32(index)
            before = index
            place += 1
    return place == len(out) and before < limit


# --- Twins of `bits.pack` and `bits.unpack`. ---

ONES = np.uint64(0x0101010101010101)  # the lowest bit of each of 8 bytes
GATHER = np.uint64(
    0x0102040810204080
)  # multiplied with such bits, collects them in the highest byte
SPREAD = np.uint64(0x8040201008040201)  # bit k of byte k
BELOW = np.uint64(
    0x7F7F7F7F7F7F7F7F
)  # added to a byte, it sets the highest bit unless the byte is 0
BYTE, SEVEN = np.uint64(56), np.uint64(7)


@kernel
def write_planes(index: Array, width: int, out: Array) -> None:
    """Write the lowest `width` bits of (m,) indices: bytes of all, then single bits as bitmaps."""
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
    """Fill (m,) int32 from the output of `write_planes`."""
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
    """Write the lowest 2 or 4 bits of (m,) indices, neighbours in one byte, the first lowest."""
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
    """Fill (m,) int32 from the output of `write_fields`."""
    more, mask = (2 if width == 2 else 1), np.int32((1 << width) - 1)
    for i in range(len(out)):
        place = np.int32((i & ((1 << more) - 1)) * width)
        out[i] = (np.int32(packed[i >> more]) >> place) & mask


# --- Twins of `merge.merged`: two lists, or any number of them through a range of zeros. ---


@kernel
def joined(
    index: Array, values: Array, others: Array, terms: Array, found: Array, sums: Array
) -> Any:
    """Write the sum of two ascending lists, without zeros; return the number of entries.

    Values are words, int32, and sums float32: masks replace unpredictable branches.
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
    """Write places and values of the non-zeros of (n,) float32; return their number."""
    count, whole = 0, len(total) // WORD * WORD
    for group in range(0, whole, WORD):
        bits = np.uint64(0)
        for i in range(WORD):
            bits |= np.uint64(total[group + i] != 0) << np.uint64(i)
        while bits:
            place = group + np.int64(lowest(bits))
            found[count], sums[count] = place, total[place]
            count += 1
            bits &= bits - UNIT
    for i in range(whole, len(total)):
        if total[i] != 0:
            found[count], sums[count] = i, total[i]
            count += 1
    return count


# --- Twin of `lowrank.spread`: one pass over the result, whatever the rank. ---


@kernel
def spread(left: Array, lines: Array, values: Array, out: Array) -> None:
    """Write P Q^T to `out` (n,), or `values` minus it if these are not none; lines = Q^T."""
    rank, cols = lines.shape
    scratch = np.empty(cols, np.float32)
    for i in range((len(out) + cols - 1) // cols):
        here = out[i * cols : (i + 1) * cols]
        width = len(here)
        total = here
        if len(values):
            total = scratch[:width]
        line, factor = lines[0, :width], left[i, 0]
        for j in range(width):
            total[j] = factor * line[j]
        for k in range(1, rank):
            line, factor = lines[k, :width], left[i, k]
            for j in range(width):
                total[j] += factor * line[j]
        if len(values):
            there = values[i * cols : i * cols + width]
            for j in range(width):
                here[j] = there[j] - total[j]
