"""The bits for the values of each block under a budget, for the least variance."""

import numpy as np
import numpy.typing as npt

from commsched.arrays import Floats

WIDTHS = (2, 4, 8)  # bits of a value
LEAST, UNIT = WIDTHS[0], WIDTHS[1] - WIDTHS[0]  # a unit buys a block the second width
WHOLE = (WIDTHS[2] - WIDTHS[0]) // UNIT  # units for the third width


def variances(spread: Floats, widths: npt.ArrayLike) -> Floats:
    """Return the variance of each block's values if rounded at random to even steps: (blocks,).

        s^2 / (6 (2^b - 1)^2)

    s = spread, largest less least value of a block; b = bits. Holds for values that lie anywhere
    between two steps with equal probability: the mean of p (1 - p) is 1/6.
    Source: Wan et al., "AdaQP", MLSys 2023; its code weighs bits by 1 / (2^b - 1)^2, too.
    """
    return spread**2 / (6.0 * (np.exp2(widths) - 1.0) ** 2)


def units_of(blocks: int, mean: int) -> int:
    """Return the units that blocks may spend, so that a value has `mean` bits at most."""
    return blocks * (mean - LEAST) // UNIT


def assigned(spread: Floats, units: int) -> npt.NDArray[np.uint8]:
    """Return the number of each block's width, which minimise the sum of `variances`: (blocks,).

    spread: (blocks,) float64, finite, of blocks of equal size. The minimum is exact: of any two
    blocks the one with the larger spread never has fewer bits, so that only the number of blocks
    with the most bits is open, and each is tried. The paper solves a mixed-integer program, of
    groups of messages, which weighs variance against the time of the slowest pair of ranks.
    """
    blocks, order = len(spread), np.argsort(-spread, kind="stable")
    rest = np.zeros(blocks + 1)  # of the squares from the k-th largest on
    rest[:blocks] = np.cumsum(np.square(spread[order])[::-1])[::-1]
    most = np.arange(min(blocks, units // WHOLE) + 1)
    more = most + np.minimum(blocks - most, units - WHOLE * most)
    low, middle, high = variances(np.ones(3), WIDTHS)
    best = int(np.argmin((middle - high) * rest[most] + (low - middle) * rest[more]))
    found = np.zeros(blocks, np.uint8)
    found[order[: more[best]]] = 1
    found[order[: most[best]]] = 2
    return found
