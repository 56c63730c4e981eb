"""Fused kernels for CuPy's arrays, with fewer passes over memory than their twins in NumPy."""

from commsched.kernels.cuda import (
    accumulate,
    bits,
    eightbit,
    half,
    hashing,
    lowrank,
    merge,
    pruned,
    quantise,
    random,
    rangefloat,
    rows,
    select,
    spectrum,
)

__all__ = [
    "accumulate",
    "bits",
    "eightbit",
    "half",
    "hashing",
    "lowrank",
    "merge",
    "pruned",
    "quantise",
    "random",
    "rangefloat",
    "rows",
    "select",
    "spectrum",
]
