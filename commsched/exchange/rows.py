"""Gradients as rows of a matrix, such as those of an embedding, and sums as rows again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.kernels.merge import Listed, here, listed, without_zeros
from commsched.kernels.modules import module_of
from commsched.kernels.whole_rows import added_rows, elements_of, rows_at


@dataclass(frozen=True)
class Rows:
    """Numbers of rows, (k,) whole numbers, and their values, (k, width) float32.

    A row that is named twice counts as the sum of both.
    """

    number: Array
    values: Array

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    def copy(self) -> "Rows":
        """Return a copy that shares no memory with these rows."""
        return Rows(self.number.copy(), self.values.copy())

    @cached_property
    def summed(self) -> Listed:
        """Return the non-zeros of the matrix; values of one element are added in their order."""
        number, values = self.number.astype(np.int64, copy=False), self.values
        if here(values):
            number, values = added_rows(number, values)
            return without_zeros(Listed(elements_of(number, self.width), values.reshape(-1)))
        module = module_of(values)
        if len(number) > 1 and not bool((number[1:] > number[:-1]).all()):
            number, place = module.unique(number, return_inverse=True)
            values = module.zeros((len(number), self.width), np.float32)
            into = place.reshape(-1, 1) * self.width + module.arange(self.width)
            np.add.at(values.reshape(-1), into.reshape(-1), self.values.reshape(-1))
        found = listed(values.reshape(-1))
        row, column = found.index // self.width, found.index % self.width
        return Listed(number[row] * self.width + column, found.values)


def rows_of(found: Listed, width: int) -> tuple[Array, Array]:
    """Return the rows that a matrix's non-zeros lie in, ascending: (k,), and (k, width) values."""
    module = module_of(found.values)
    whole = rows_at(found.index, width) if here(found.values) else None
    if whole is not None:
        return whole.astype(np.int64, copy=False), found.values.reshape(-1, width)
    row = found.index // width
    fresh = module.ones(len(row), np.bool_)
    fresh[1:] = row[1:] != row[:-1]
    first = module.flatnonzero(fresh)
    values = module.zeros((len(first), width), np.float32)
    values[module.cumsum(fresh) - 1, found.index - row * width] = found.values
    return row[first].astype(np.int64, copy=False), values


def whole(gradient: Array | Rows, numel: int) -> Array:
    """Return rows as a dense array, (numel,) float32; an array as it is."""
    if not isinstance(gradient, Rows):
        return gradient
    index, values = gradient.summed
    dense = module_of(values).zeros(numel, np.float32)
    dense[index] = values
    return dense


class RowsPart(NamedTuple):
    """Elements [start, stop) of a tensor that is handed over as rows."""

    rows: Rows
    start: int
    stop: int

    def listed(self) -> Listed:
        """Return the non-zeros, counted from `start`."""
        return self.rows.summed.part(self.start, self.stop)


def as_list(parts: dict[int, RowsPart], gradient: Array, runs: Sequence[slice]) -> Listed:
    """Return a bucket of pieces at `runs` as one list; pieces that are no parts are scanned."""
    module = module_of(gradient)
    together = _together(parts, runs) if here(gradient) else None
    if together is not None:
        return together.summed
    found = [
        parts[run.start].listed() if run.start in parts else listed(gradient[run]) for run in runs
    ]
    index = [each.index + run.start for each, run in zip(found, runs, strict=True)]
    return Listed(module.concatenate(index), module.concatenate([each.values for each in found]))


def _together(parts: dict[int, RowsPart], runs: Sequence[slice]) -> Rows | None:
    """Return a bucket whose pieces are all rows of one width as rows of the bucket, else None."""
    found = [parts[run.start] for run in runs if run.start in parts]
    widths = {part.rows.width for part in found}
    if len(found) < len(runs) or len(widths) != 1:
        return None
    (width,) = widths
    number, values = [], []
    for part, run in zip(found, runs, strict=True):
        first, ends, over = part.start // width, part.stop // width, run.start // width
        if (first * width, ends * width, over * width) != (part.start, part.stop, run.start):
            return None
        own, kept = part.rows.number.astype(np.int64, copy=False), part.rows.values
        if len(own) and (own.min() < first or own.max() >= ends):
            inside = (own >= first) & (own < ends)
            own, kept = own[inside], kept[inside]
        number.append(own + (over - first))
        values.append(kept)
    return Rows(np.concatenate(number), np.concatenate(values))


def write(parts: dict[int, RowsPart], gradient: Array) -> None:
    """Write parts densely to their places in a bucket."""
    for at, part in parts.items():
        index, values = part.listed()
        run = gradient[at : at + part.stop - part.start]
        run.fill(0)
        run[index] = values
