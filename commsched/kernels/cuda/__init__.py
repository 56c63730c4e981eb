"""Fused kernels for arrays of CuPy: what NumPy does in several passes, in as few as can be."""

from commsched.kernels.cuda import accumulate as ways
from commsched.kernels.cuda import (
    bits,
    eightbit,
    half,
    hashing,
    lowrank,
    merge,
    pruned,
    random,
    rangefloat,
    rows,
    select,
    spectrum,
)
from commsched.kernels.cuda import quantise as steps

__all__ = [
    "bits",
    "eightbit",
    "half",
    "hashing",
    "lowrank",
    "merge",
    "pruned",
    "random",
    "rangefloat",
    "rows",
    "select",
    "spectrum",
    "steps",
    "ways",
]
