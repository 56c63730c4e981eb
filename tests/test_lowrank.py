"""Narrow matrices spread to a wide one: P Q^T, in the order of the columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.kernels import lowrank


@given(rows=st.integers(1, 30), cols=st.integers(1, 30), rank=st.integers(1, 4))
def test_the_transposed_product_is_numpys_but_for_the_order_of_additions(rows, cols, rank):
    rng = np.random.default_rng(cols)
    matrix, columns = (rng.standard_normal((rows, n)).astype(np.float32) for n in (cols, rank))
    found = lowrank.transposed_product(matrix, columns)
    assert (found.shape, found.dtype) == ((cols, rank), np.float32)
    wanted = matrix.astype(np.float64).T @ columns
    most = np.abs(matrix).T @ np.abs(columns)
    assert (np.abs(found - wanted) <= rows * 2.0**-23 * most).all()


@given(rows=st.integers(1, 30), cols=st.integers(1, 30), rank=st.integers(1, 4))
@pytest.mark.parametrize("chunk", [1, 64, lowrank.CHUNK])
def test_it_is_the_product_added_up_in_order(chunk, rows, cols, rank):
    rng = np.random.default_rng(rows)
    left = rng.standard_normal((rows, rank)).astype(np.float32)
    right = rng.standard_normal((cols, rank)).astype(np.float32)
    wanted = sum(np.multiply.outer(left[:, k], right[:, k]) for k in range(rank)).ravel()
    values = rng.standard_normal(rows * cols).astype(np.float32)
    for numel in (rows * cols, rows * cols - cols // 2):
        out = np.ones(numel, np.float32)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lowrank, "CHUNK", chunk)
            lowrank.spread(left, right, out)
            np.testing.assert_array_equal(out, wanted[:numel])
            lowrank.spread(left, right, out, values[:numel])
            np.testing.assert_array_equal(out, values[:numel] - wanted[:numel])
