"""The law of the rows of a matrix that successive batches read, fitted to what was seen."""

from collections.abc import Sequence

import numpy as np

from commsched.arrays import Array
from commsched.net.sparsity import Sparsity

SPARSE = 0.5  # largest share of rows with non-zeros in a gradient that counts as sparse
EXPONENTS = np.arange(0.0, 3.01, 0.05)
UNIONS = (2, 4, 8)  # batches


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
