"""fp32 to 8-bit floats and back, as bytes: e4m3 and e5m2 of the Open Compute Project."""

from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.kernels.accumulate import REPLACE, in_chunks
from commsched.kernels.device import device
from commsched.kernels.modules import module_of

CHUNK = 1 << 16  # values at a time: temporary arrays stay in the cache


class FloatFormat(NamedTuple):
    """Layout of an 8-bit float: sign, exponent, mantissa."""

    mantissa: int  # bits
    bias: int
    largest: float
    nan: int  # code of NaN


# Source: OCP 8-bit floating point specification (OFP8), revision 1.0, 2023, tables 1 and 2.
E4M3 = FloatFormat(mantissa=3, bias=7, largest=448.0, nan=0x7F)
E5M2 = FloatFormat(mantissa=2, bias=15, largest=57344.0, nan=0x7F)


def narrow(values: Array, form: FloatFormat, scale: float = 1.0) -> Array:
    """Round (n,) float32 times `scale` to nearest even, saturating: (n,) uint8.

    NaN and infinity both become NaN: a broken gradient must be seen, and e4m3 has no infinity.
    """
    gpu = device(values)
    out = module_of(values).empty(len(values), np.uint8)
    if gpu is not None:
        numbers = np.int32(form.mantissa), np.int32(form.bias), np.float32(form.largest)
        given = np.int64(len(values)), np.float32(scale), *numbers, np.int32(form.nan), out
        gpu.start("eightbit", "narrow", gpu.strides(len(values)), values, *given)
        return out
    for at in range(0, len(values), CHUNK):
        out[at : at + CHUNK] = _narrow(values[at : at + CHUNK], form, scale)
    return out


def _narrow(values: Array, form: FloatFormat, scale: float) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        size = np.minimum(np.abs(values) * np.float32(scale), np.float32(form.largest))
        # Steps below the least normal number are even: an addition rounds to them.
        least = np.float32(2.0 ** (1 - form.bias))
        step = np.float32(2.0 ** (1 - form.bias - form.mantissa))
        tiny = np.rint(size * (np.float32(1) / step)).astype(np.uint32)
    drop = np.uint32(23 - form.mantissa)
    bits = size.view(np.uint32)
    bits = bits + (((bits >> drop) & np.uint32(1)) + np.uint32((1 << (22 - form.mantissa)) - 1))
    code = (bits >> drop) - np.uint32((127 - form.bias) << form.mantissa)
    code = np.where(size < least, tiny, code)
    code = np.where(np.isfinite(values), code, np.uint32(form.nan))
    sign = (values.view(np.uint32) >> np.uint32(24)) & np.uint32(0x80)
    return (code | sign).astype(np.uint8)


def table(form: FloatFormat) -> Array:
    """Return the number that each of the 256 codes stands for: (256,) float32."""
    code = np.arange(128)
    exponent, fraction = code >> form.mantissa, code & ((1 << form.mantissa) - 1)
    part = fraction / (1 << form.mantissa)
    size = np.where(
        exponent == 0,
        part * 2.0 ** (1 - form.bias),
        (1 + part) * 2.0 ** (exponent.astype(np.float64) - form.bias),
    )
    size[size > form.largest] = np.nan
    return np.concatenate([size, -size]).astype(np.float32)


def look_up(table: Array, codes: Array, out: Array, way: int = REPLACE) -> None:
    """Look (n,) uint8 up in a table of 256 float32, and put the values into `out` as `way` says."""
    gpu = device(out)
    if gpu is not None:
        given = module_of(out).asarray(table), codes, np.int64(len(out)), np.int32(way), out
        gpu.start("eightbit", "look_up", gpu.strides(len(out)), *given)
    elif way != REPLACE:
        in_chunks(lambda first, stop, room: look_up(table, codes[first:stop], room), out, way)
    elif isinstance(out, np.ndarray):
        table.take(codes, out=out, mode="clip")  # "clip" skips the check of every code
    else:
        out[:] = module_of(out).asarray(table)[codes]
