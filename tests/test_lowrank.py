"""Narrow matrices spread to a wide one: P Q^T, in the order of the columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.kernels import lowrank


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
