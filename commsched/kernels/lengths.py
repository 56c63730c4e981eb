"""Lengths at which a Fourier transform is fast: products of 2, 3 and 5."""

from functools import cache


@cache
def fast_length(numel: int) -> int:
    """Return the smallest product of powers of 2, 3 and 5 not below `numel`, at least 1.

    A transform whose length has a large prime factor takes ten times as long and more.
    """
    best, fives = _power_of_two(numel), 1
    while fives < best:
        threes = fives
        while threes < best:
            best = min(best, threes * _power_of_two(-(-numel // threes)))
            threes *= 3
        fives *= 5
    return best


def _power_of_two(numel: int) -> int:
    """Return the smallest power of 2 that is not below."""
    return 1 << max(numel - 1, 0).bit_length()
