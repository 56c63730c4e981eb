"""fp32 to 16-bit floats and back, as uint16 words: MPI has no portable half type."""

from typing import Any

import numpy as np

Array = Any  # a NumPy or CuPy array


def to_fp16(values: Array) -> Array:
    """Round (n,) float32 to IEEE half, beyond its range to the largest finite: (n,) uint16.

    NaN and infinity stay what they are: a broken gradient must be seen.
    """
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    if not np.isfinite(half).all():
        big = np.isinf(half) & np.isfinite(values)
        half[big] = np.copysign(np.float16(65504), values[big])
    return half.view(np.uint16)


def from_fp16(words: Array) -> Array:
    """(n,) uint16 -> (n,) float32."""
    return words.view(np.float16).astype(np.float32)


def to_bf16(values: Array) -> Array:
    """Round (n,) float32 to bfloat16, to nearest even: (n,) uint16."""
    bits = values.view(np.uint32)
    words = bits + (((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF))
    words >>= np.uint32(16)
    out = words.astype(np.uint16)
    nan = values != values
    if nan.any():
        out[nan] = np.uint16(0x7FC0)
    return out


def from_bf16(words: Array) -> Array:
    """(n,) uint16 -> (n,) float32."""
    wide = words.astype(np.uint32)
    wide <<= np.uint32(16)
    return wide.view(np.float32)
