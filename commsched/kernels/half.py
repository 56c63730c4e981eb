"""fp32 to 16-bit floats and back, as uint16 words: MPI has no portable half type.

Values are rounded by arithmetic on their words, in chunks that the cache holds: NumPy vectorises
arithmetic, but not its own conversion to half. If the compiled extra is installed, it rounds long
runs to the same words.
"""

from typing import Any

import numpy as np

from commsched.arrays import Array
from commsched.kernels.accumulate import REPLACE, in_chunks
from commsched.kernels.compiled import compiled
from commsched.kernels.device import device
from commsched.kernels.modules import module_of

CHUNK = 1 << 16  # values at a time

SIGN, MAGNITUDE = np.uint32(0x8000), np.uint32(0x7FFFFFFF)
LEAST = np.uint32(0x38800000)  # 2**-14, the least normal half
BEYOND = np.uint32(0x477FF000)  # 65520, from which halves would round to infinity
FIRST_BEYOND = BEYOND.view(np.float32)
DOWN = np.uint32((0xFFF - (112 << 23)) % 2**32)  # round to even, and the exponent's other bias
HALF = np.float32(0.5)  # added to x < 2**-14, it puts the subnormal half into the last bits
LOW = 0 if np.little_endian else 1  # place of a word's lower 16 bits


def _launch(gpu: Any, kernel: str, values: Array, *given: Array | np.int32) -> None:
    """Start a GPU's kernel; a thread handles 8 numbers of 32 bits, or 4 words of 16, at once."""
    blocks = gpu.strides(len(values), 2 * values.itemsize)
    gpu.start("half", kernel, blocks, values, np.int64(len(values)), *given)


def to_fp16(values: Array) -> Array:
    """Round (n,) float32 to IEEE half, beyond its range to the largest finite: (n,) uint16.

    NaN and infinity are kept, so that a broken gradient is noticed.
    """
    module = module_of(values)
    out = module.empty(len(values), np.uint16)
    gpu, fast = device(values), compiled(values)
    if gpu is not None:
        _launch(gpu, "to_fp16", values, out)
        return out
    if fast is not None:
        fast.to_fp16(values, values.view(np.uint32), out)
        return out
    size, word = (module.empty(min(CHUNK, len(values)), np.uint32) for _ in range(2))
    for at in range(0, len(values), CHUNK):
        part = values[at : at + CHUNK]
        _fp16(part, size[: len(part)], word[: len(part)], out[at : at + CHUNK])
    return out


def _fp16(values: Array, size: Array, word: Array, out: Array) -> None:
    """Round one chunk; `size` and `word` are working memory."""
    bits = values.view(np.uint32)
    np.bitwise_and(bits, MAGNITUDE, out=size)
    if size.max() >= BEYOND:
        out[:] = _clamped(values)
        return
    small = size < LEAST if size.min() < LEAST else None
    np.right_shift(size, np.uint32(13), out=word)
    np.bitwise_and(word, np.uint32(1), out=word)
    np.add(word, size, out=word)
    np.add(word, DOWN, out=word)
    np.right_shift(word, np.uint32(13), out=word)
    if small is not None:
        tiny = size.view(np.float32)
        np.add(tiny, HALF, out=tiny)
        np.subtract(size, HALF.view(np.uint32), out=size)
        np.copyto(word, size, where=small)
    np.right_shift(bits, np.uint32(16), out=size)
    np.bitwise_and(size, SIGN, out=size)
    np.bitwise_or(word, size, out=word)
    out[:] = word.view(np.uint16)[LOW::2]


def _clamped(values: Array) -> Array:
    """Round values; some may be beyond the range, NaN or infinity."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    big = np.isinf(half) & np.isfinite(values)
    half[big] = np.copysign(np.float16(65504), values[big])
    words: Array = half.view(np.uint16)
    broken = np.isnan(values)
    words[broken] = (words[broken] & np.uint16(SIGN)) | np.uint16(0x7E00)
    return words


def from_fp16(words: Array, out: Array | None = None, way: int = REPLACE) -> Array:
    """(n,) uint16 -> (n,) float32, put into `out` if there is one, as `way` says."""
    if out is None:
        out = module_of(words).empty(len(words), np.float32)
    gpu, fast = device(words), compiled(words)
    if gpu is not None:
        _launch(gpu, "from_fp16", words, np.int32(way), out)
        return out
    if way != REPLACE:
        in_chunks(lambda first, stop, room: from_fp16(words[first:stop], room), out, way)
        return out
    if fast is not None:
        fast.from_fp16(words, out.view(np.uint32))
        return out
    out[:] = words.view(np.float16)
    return out


def narrowed(values: Array) -> Array:
    """Round float32 of any shape to float16, beyond its range to infinity: the bits of `astype`."""
    if not isinstance(values, np.ndarray) or not values.size or not values.flags.c_contiguous:
        return values.astype(np.float16)
    run = values.reshape(-1)
    if not max(run.max(), -run.min()) < FIRST_BEYOND:  # or not a number
        return values.astype(np.float16)
    return to_fp16(run).view(np.float16).reshape(values.shape)


def widened(values: Array) -> Array:
    """Convert float16 of any shape to float32 in the same order in memory, as `astype` does."""
    if not isinstance(values, np.ndarray) or not values.flags.forc:
        return values.astype(np.float32)
    if not values.flags.c_contiguous:
        return widened(values.T).T
    return from_fp16(values.reshape(-1).view(np.uint16)).reshape(values.shape)


def half_sum(one: Array, other: Array) -> Array:
    """Add float16 numbers, each sum rounded to float16: the bits of `one + other`."""
    return narrowed(widened(one) + widened(other))


def to_bf16(values: Array) -> Array:
    """Round (n,) float32 to bfloat16, to nearest even: (n,) uint16."""
    module = module_of(values)
    out = module.empty(len(values), np.uint16)
    gpu, fast = device(values), compiled(values)
    if gpu is not None:
        _launch(gpu, "to_bf16", values, out)
        return out
    if fast is not None:
        fast.to_bf16(values.view(np.uint32), out)
        return out
    word = module.empty(min(CHUNK, len(values)), np.uint32)
    for at in range(0, len(values), CHUNK):
        part = values[at : at + CHUNK]
        bits, here = part.view(np.uint32), word[: len(part)]
        np.right_shift(bits, np.uint32(16), out=here)
        np.bitwise_and(here, np.uint32(1), out=here)
        np.add(here, np.uint32(0x7FFF), out=here)
        np.add(here, bits, out=here)
        out[at : at + CHUNK] = here.view(np.uint16)[1 - LOW :: 2]
        if np.isnan(part.max()):
            out[at : at + CHUNK][np.isnan(part)] = np.uint16(0x7FC0)
    return out


def from_bf16(words: Array, out: Array | None = None, way: int = REPLACE) -> Array:
    """(n,) uint16 -> (n,) float32, put into `out` if there is one, as `way` says."""
    if out is None:
        out = module_of(words).empty(len(words), np.float32)
    gpu = device(words)
    if gpu is not None:
        _launch(gpu, "from_bf16", words, np.int32(way), out)
        return out
    if way != REPLACE:
        in_chunks(lambda first, stop, room: from_bf16(words[first:stop], room), out, way)
        return out
    for at in range(0, len(words), CHUNK):
        wide = out[at : at + CHUNK].view(np.uint32)
        wide[:] = words[at : at + CHUNK]
        wide <<= np.uint32(16)
    return out
