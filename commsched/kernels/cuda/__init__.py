"""Fused kernels for arrays of CuPy: what NumPy does in several passes, in as few as can be."""

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
