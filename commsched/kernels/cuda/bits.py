"""Packed codes on a GPU. Twins of `bits.pack`, `bits.pack_flags` and `bits.unpack`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda.launch import start, strides
from commsched.kernels.modules import module_of

PACKED = ("uint8", "uint16", "int64")  # types that kernels take; others become the last


def pack(codes: Array, width: int, nbytes: int) -> Array:
    """(n,) codes of `width` bits -> (nbytes,) uint8."""
    kind = codes.dtype.name if codes.dtype.name in PACKED else PACKED[-1]
    codes = codes.astype(kind, copy=False)
    out = module_of(codes).empty(nbytes, np.uint8)
    given = codes, np.int64(len(codes)), np.int32(width), out
    start("bits", f"pack_{kind}", strides(len(codes), 8), *given)
    return out


def pack_flags(flags: Array) -> Array:
    """(n,) bool or uint8 -> (ceil(n / 8),) uint8."""
    out = module_of(flags).empty(-(-len(flags) // 8), np.uint8)
    given = flags.view(np.uint8), np.int64(len(flags)), out
    start("bits", "pack_flags", strides(len(flags), 8), *given)
    return out


def unpack(packed: Array, count: int, width: int) -> Array:
    """(nbytes,) uint8 -> (count,) uint8, or int64 for widths above 8."""
    kind = "int64" if width > 8 else "uint8"
    out = module_of(packed).empty(count, kind)
    given = packed, np.int64(count), np.int32(width), out
    start("bits", f"unpack_{kind}", strides(count), *given)
    return out
