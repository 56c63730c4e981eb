"""Sums of sparse lists are NumPy's sums, by either way of merging."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.kernels import merge, whole_rows
from commsched.kernels.bits import set_flags
from commsched.kernels.merge import Listed, SparseSum, listed, merged
from tests.support.gradients import bits

some_lists = given(
    numel=st.integers(1, 2000), density=st.sampled_from([0, 0.001, 0.1, 1]),
    ways=st.integers(1, 5), seed=st.integers(0, 9),
)  # fmt: skip
WAYS = [(0, 0), (10**9, 0), (10**9, 10**9)]  # merge, sort indices, scan flags


@given(
    numel=st.integers(0, 3000), density=st.sampled_from([0, 0.003, 0.02, 0.09, 0.2, 1]),
    shift=st.integers(0, 3), seed=st.integers(0, 9),
)  # fmt: skip
def test_positions_of_flags_are_those_of_flatnonzero(numel, density, shift, seed):
    flags = (np.random.default_rng(seed).random(numel + shift) < density)[shift:]
    np.testing.assert_array_equal(set_flags(flags), np.flatnonzero(flags))


@some_lists
def test_lists_sum_like_numpy_whichever_way_they_are_merged(numel, density, ways, seed):
    rng = np.random.default_rng(seed)
    hit = rng.random((ways, numel)) < density
    dense = np.where(hit, rng.choice([-2, -1, 1, 2], hit.shape), 0).astype(np.float32)
    lists = [listed(values) for values in dense]
    for sparse, flags in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge, "SPARSE", sparse)
            patch.setattr(merge, "FLAGS", flags)
            index, values = merged(lists, numel)
        out = np.zeros(numel, np.float32)
        out[index] = values
        np.testing.assert_array_equal(out, dense.sum(axis=0))
        assert (np.diff(index) > 0).all()
        assert (values != 0).all()


@some_lists
def test_lists_that_come_one_after_the_other_sum_to_the_same_bits(numel, density, ways, seed):
    rng = np.random.default_rng(seed)
    hit = rng.random((ways, numel)) < density
    values = np.where(rng.random(hit.shape) < 0.3, 1, rng.standard_normal(hit.shape))
    lists = [listed(row) for row in (hit * values * (-1) ** rng.integers(2)).astype(np.float32)]
    for sparse, _ in WAYS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge, "SPARSE", sparse)
            found, so_far = SparseSum(lists[0], numel), lists[0]
            for each in lists[1:]:
                found.add(each)
                so_far = merged([so_far, each], numel)
                np.testing.assert_array_equal(found.listed().index, so_far.index)
                np.testing.assert_array_equal(bits(found.listed().values), bits(so_far.values))


@given(
    width=st.integers(1, 40), rows=st.integers(1, 60), density=st.sampled_from([0, 0.1, 0.5, 1]),
    ways=st.integers(2, 5), offset=st.integers(0, 3), seed=st.integers(0, 9),
)  # fmt: skip
def test_lists_of_whole_rows_sum_to_the_bits_of_their_elements(
    width, rows, density, ways, offset, seed
):
    """Also where a sum has zeros, and where rows do not begin at multiples of their width."""
    rng = np.random.default_rng(seed)
    hit = np.repeat(rng.random((ways, rows)) < density, width, axis=1)
    values = np.where(rng.random(hit.shape) < 0.3, 1, rng.standard_normal(hit.shape))
    dense = (hit * values * rng.choice([-1, 1], (ways, 1))).astype(np.float32)
    dense = np.pad(dense, ((0, 0), (offset, 0)))
    lists = [listed(row) for row in dense]
    found = merged(lists, dense.shape[1])
    total = np.zeros(dense.shape[1], np.float32)
    for row in dense:
        total += row
    np.testing.assert_array_equal(found.index, np.flatnonzero(total))
    np.testing.assert_array_equal(bits(found.values), bits(total[found.index]))
    whole = offset == 0 and width >= whole_rows.LEAST and 0 < density < 1
    by_rows = whole_rows.added([each for each in lists if len(each.index)])
    assert not (whole and hit.any() and by_rows is None)


def test_elements_that_form_no_rows_are_not_taken_for_some():
    for index in ([], range(7), [*range(8), 9], range(4, 12), [*range(16), *range(17, 25)]):
        assert whole_rows.width_of(np.array(list(index), np.int64)) == 1
    assert whole_rows.width_of(np.array([*range(12), *range(36, 60)])) == 12
    assert whole_rows.rows_at(np.array([*range(12), *range(36, 60)]), 12).tolist() == [0, 3, 4]
    assert whole_rows.rows_at(np.array([*range(11), *range(36, 60)]), 12) is None


def test_nan_and_infinity_are_kept():
    one = listed(np.array([0, np.nan, 2, 0, np.inf], np.float32))
    two = listed(np.array([0, 1, -2, 0, -np.inf], np.float32))
    for sparse, flags in WAYS:
        with pytest.MonkeyPatch.context() as patch, np.errstate(invalid="ignore"):
            patch.setattr(merge, "SPARSE", sparse)
            patch.setattr(merge, "FLAGS", flags)
            index, values = merged([one, two], 5)
        assert index.tolist() == [1, 4]
        assert np.isnan(values).all()


def test_a_part_of_a_list_counts_from_its_start():
    whole = Listed(np.array([1, 4, 6, 9]), np.array([1, 2, 3, 4], np.float32))
    index, values = whole.part(4, 9)
    assert index.tolist() == [0, 2]
    assert values.tolist() == [2, 3]
