"""Lists of non-zeros that are whole rows of tables, such as embeddings': added row by row."""

from collections.abc import Sequence
from math import gcd

import numpy as np

from commsched.arrays import Array

# From this many elements per row, rows are added instead of elements. On one core of an Intel Xeon
# (Sapphire Rapids), NumPy 2.4, two lists of 16,000 elements of 8 million: rows of 32 take 0.11 ms,
# of 8 0.16 ms, elements 0.96 ms.
LEAST = 8


def width_of(index: Array) -> int:
    """Return the greatest width at which ascending indices, (m,), are whole rows; 1 below LEAST.

    A row of width w begins at a multiple of w.
    """
    count = len(index)
    if count < LEAST or index[LEAST - 1] - index[0] != LEAST - 1:
        return 1
    # A multiple of the width, as the first row, the last one, and one between begin at multiples.
    width = gcd(count, int(index[0]), int(index[-1]) + 1)
    width = gcd(width, int(index[count // width // 2 * width]))
    if rows_at(index, width) is None:
        last = np.flatnonzero(index[1:] - index[:-1] != 1)
        if LEAST * (len(last) + 1) > count:
            return 1
        bounds = np.concatenate([index[:1], index[-1:] + 1, index[last] + 1, index[last + 1]])
        width = int(np.gcd.reduce(bounds))
    return width if width >= LEAST else 1


def rows_at(index: Array, width: int) -> Array | None:
    """Return the numbers of the rows that ascending indices cover; None if not all are whole."""
    if len(index) % width:
        return None
    rows: Array = index[::width] // width
    # As many distinct indices as a row has, all in the same one, are the row.
    return rows if (rows == index[width - 1 :: width] // width).all() else None


def elements_of(number: Array, width: int) -> Array:
    """Return the indices of all elements of rows: (rows * width,) int64."""
    found: Array = (number.astype(np.int64)[:, np.newaxis] * width + np.arange(width)).reshape(-1)
    return found


def added_rows(number: Array, values: Array) -> tuple[Array, Array]:
    """Return rows, (k,) numbers and (k, width) values, ascending and each once.

    Values of one element are added in their order.
    """
    if len(number) < 2 or (number[1:] > number[:-1]).all():
        return number, values
    order = np.argsort(number, kind="stable")
    ascending = number[order]
    again = np.zeros(len(order), np.bool_)
    np.equal(ascending[1:], ascending[:-1], out=again[1:])
    first = np.flatnonzero(~again)
    total = values.take(order[first], axis=0)
    if len(first) < len(order):
        place = np.cumsum(~again)[again] - 1
        into = elements_of(place, values.shape[1])
        np.add.at(total.reshape(-1), into, values.take(order[again], axis=0).reshape(-1))
    return ascending[first], total


def added(lists: Sequence[tuple[Array, Array]]) -> tuple[Array, Array] | None:
    """Add lists, indices and values, in their order; None if not all are of whole rows."""
    width = 0
    for index, _ in lists:
        if len(index):
            width = gcd(width, width_of(index))
    if width < LEAST:
        return None
    numbers = [index[::width] // width for index, _ in lists]
    every = np.concatenate(numbers)
    every.sort()
    fresh = np.ones(len(every), np.bool_)
    np.not_equal(every[1:], every[:-1], out=fresh[1:])
    union = every[fresh]
    total = np.zeros((len(union), width), np.float32)
    for number, (_, values) in zip(numbers, lists, strict=True):
        total[np.searchsorted(union, number)] += values.reshape(-1, width)
    return elements_of(union, width), total.reshape(-1)
