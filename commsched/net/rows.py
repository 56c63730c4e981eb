"""The law of a gradient's non-zeros, fitted to those of successive batches."""

from collections.abc import Sequence

import numpy as np

from commsched.arrays import Array
from commsched.net.sparsity import Sparsity

SPARSE = 0.5  # largest share of rows with non-zeros in a gradient that counts as sparse
EXPONENTS = np.arange(0.0, 3.01, 0.05)
UNIONS = (2, 4, 8)  # batches
FULL = 31 / 32  # density from which a bitmap and the non-zeros are longer than float32 numbers


def fit_rows(hit: Sequence[Array]) -> Sparsity:
    """Fit the law of rows that successive batches read: each (rows,), True where one is read.

    If a batch reads less than half of the rows, a Zipf law gets the measured density, and the
    exponent whose union of 2, 4 and 8 batches is nearest to the measured union.
    """
    rows, density = len(hit[0]), float(np.mean(hit))
    counts = [count for count in UNIONS if count <= len(hit)]
    if density > SPARSE or rows < 2 or density == 0.0 or not counts:
        return Sparsity()
    unions = [
        np.mean([np.any(hit[at : at + k], axis=0).mean() for at in range(0, len(hit) - k + 1, k)])
        for k in counts
    ]
    laws = [Sparsity(law="zipf", density=density, exponent=float(e), rows=rows) for e in EXPONENTS]
    errors = [float(np.abs(law.after(np.array(counts)) / unions - 1).max()) for law in laws]
    return laws[int(np.argmin(errors))]


class Nonzeros:
    """The positions of a tensor's non-zero gradients in successive batches."""

    def __init__(self) -> None:
        self._rows: list[Array] = []  # of each batch: (rows,), True where one has non-zeros
        # batches -> the union of the last ones, and the densities of complete unions
        self._unions: dict[int, tuple[Array, list[float]]] = {k: (None, []) for k in (1, *UNIONS)}

    def add(self, nonzero: Array) -> None:
        """Note the next batch: True where its gradient is not zero, on any device."""
        rows = nonzero.reshape(len(nonzero), -1).any(axis=1)
        self._rows.append(rows if isinstance(rows, np.ndarray) else rows.get())
        for count, (union, densities) in self._unions.items():
            union = nonzero if union is None else union | nonzero
            if len(self._rows) % count == 0:
                densities.append(float(union.mean()))
                union = None
            self._unions[count] = union, densities

    def law(self) -> Sparsity:
        """Fit a law to all batches: that of `fit_rows`, or the measured densities of unions."""
        law = fit_rows(self._rows)
        means = {k: float(np.mean(seen)) for k, (_, seen) in self._unions.items() if seen}
        if law.law != "dense" or not 0.0 < means[1] < FULL:
            return law
        rising = np.maximum.accumulate(list(means.values())).tolist()
        return Sparsity(law="curve", density=means[1], curve=tuple(zip(means, rising, strict=True)))
