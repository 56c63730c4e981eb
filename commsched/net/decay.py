"""The decay of a gradient's magnitudes from the largest to the smallest."""

from functools import lru_cache

import numpy as np

from commsched.arrays import Array, Floats

TOP = 0.01  # share of the elements whose squares are compared with all
LEAST = 1000  # fewest non-zero elements for a fit
EXPONENTS = np.arange(0.0, 3.01, 0.05)


def magnitudes(numel: int, decay: float) -> Floats:
    """Return magnitudes whose k-th largest is k^-decay: (numel,)."""
    return np.arange(1.0, numel + 1) ** -decay


def fit_decay(gradient: Array) -> float:
    """Return the exponent whose largest hundredth holds an equal share of the sum of squares.

    Zeros do not count. NaN if there are too few non-zeros.
    """
    squares = gradient[gradient != 0].astype(np.float64) ** 2
    if len(squares) < LEAST or not np.isfinite(squares).all():
        return float("nan")
    top = round(TOP * len(squares))
    share = np.partition(squares, -top)[-top:].sum() / squares.sum()
    return float(np.interp(share, _shares(len(squares).bit_length()), EXPONENTS))


@lru_cache
def _shares(size: int) -> Floats:
    """Return the share that the largest of 2^size / 1.5 elements hold, by ascending exponent."""
    numel = round(2**size / 1.5)  # in the middle of the numbers with this bit length
    found = [magnitudes(numel, 2 * exponent) for exponent in EXPONENTS.tolist()]
    return np.array([some[: round(TOP * numel)].sum() / some.sum() for some in found])
