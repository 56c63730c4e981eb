"""Lists of runs of neighbours: their packets, their expected number, and cuts between them."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding import runs
from commsched.coding.packet import HEADER
from commsched.errors import CommschedError
from commsched.kernels.merge import Listed
from commsched.methods.node_union import lists as node_lists
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity

ZIPF = Sparsity(law="zipf", density=0.02, rows=2**12)


def flags_of(lengths):
    """Elements that are hit, from lengths of gaps and runs in turn: (numel,) bool."""
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)


def listed(hit):
    index = np.flatnonzero(hit).astype(np.int32)
    return Listed(index, np.arange(1, len(index) + 1, dtype=np.float32))


@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    lengths=st.lists(st.integers(8, 40), min_size=12, max_size=12),
    first=st.integers(0, 9),
)
def test_runs_come_back_as_the_list_they_were(gaps, lengths, first):
    hit = flags_of([first, *(n for pair in zip(lengths, gaps, strict=False) for n in pair)])
    index, values = listed(hit)
    bounds = runs.bounds_of(index)
    assert len(bounds) == 2 * len(gaps)
    packet = runs.pack(bounds, values, len(hit))
    assert len(packet) == HEADER + 4 * len(values) + runs.size_of(bounds, len(hit))
    found, sums = runs.open_runs(packet, len(hit))
    np.testing.assert_array_equal(found, index)
    np.testing.assert_array_equal(sums, values)


@given(hit=st.lists(st.booleans(), max_size=300))
def test_runs_are_looked_for_where_they_are_long(hit):
    index = listed(np.array(hit, bool)).index
    count = int(np.count_nonzero(np.diff(index) != 1)) + 1
    bounds = runs.bounds_of(index)
    if bounds is None:
        assert len(index) < runs.LEAST * count
    else:
        assert len(bounds) == 2 * count <= 2 * len(index) / runs.LEAST


def broken():
    packet = runs.pack(np.array([3, 20, 40, 60]), np.ones(37, np.float32), 100)
    yield "cut short", packet[:-1]
    yield "longer", np.append(packet, packet[-1:])
    yield "of another kind", np.append(packet[8:16], packet[8:])
    many = packet.copy()
    many[8:HEADER].view(np.int64)[0] = 99
    yield "more runs than elements", many
    few = packet.copy()
    few[8:HEADER].view(np.int64)[0] = 1
    yield "fewer runs than values", few


@pytest.mark.parametrize(("what", "packet"), [*broken()], ids=lambda x: x if type(x) is str else "")
def test_what_is_no_list_of_runs_is_refused(what, packet):
    with pytest.raises(CommschedError, match="is not a list of runs of 100 elements"):
        runs.open_runs(packet, 100)


@pytest.mark.parametrize("density", [0.01, 0.3, 0.97])
@pytest.mark.parametrize("width", [1, 4, 30])
def test_a_coded_list_is_the_smallest_of_its_forms(density, width):
    rng, rows = np.random.default_rng(7), 3000
    found = listed(np.repeat(rng.random(rows) < density, width))
    numel = rows * width
    packet = node_lists.coded(found, numel)
    other = node_lists.elias.pack_list(*found, numel)
    assert len(packet) <= len(other)
    if width == 30 and density < 0.9:  # else the values of all elements are no more
        assert len(packet) < 0.98 * len(other)
    for each in (packet, node_lists.compact(found, numel)):
        back = node_lists.opened(each, numel)
        np.testing.assert_array_equal(back.index, found.index)
        np.testing.assert_array_equal(back.values, found.values)


@pytest.mark.parametrize(
    "law",
    [Sparsity(), Sparsity(law="uniform", density=0.3), Sparsity(law="zipf", density=0.1, rows=300)],
    ids=lambda law: law.law,
)
@pytest.mark.parametrize("merged", [1, 3])
def test_as_many_runs_are_drawn_as_expected(law, merged):
    numel, draws, rng = 6000, 200, np.random.default_rng(4)
    cuts = np.array([0, 30, 31, 1000, 4500, 6000])
    found = np.zeros((draws, len(cuts) - 1))
    for draw in found:
        hit = np.zeros(numel, bool)
        for _ in range(merged):
            hit[law.support(numel, rng)] = True
        for part, (a, b) in enumerate(pairwise(cuts.tolist())):
            draw[part] = np.count_nonzero(np.diff(hit[a:b], prepend=False).astype(bool) & hit[a:b])
    # Five standard errors, at least those of a share of 1 / draws.
    slack = 5 * np.sqrt(np.maximum(found.var(axis=0), 1 / draws) / draws)
    expected = law.runs(numel, cuts[:-1], cuts[1:], merged)
    assert (np.abs(found.mean(axis=0) - expected) <= slack).all()


def test_even_cuts_share_the_non_zeros_of_a_table_evenly():
    numel = 2**20
    pieces = ((Sparsity(), 5000, 0, 5000), (ZIPF, numel, 0, numel), (ZIPF, numel, 10**5, numel))
    for spec in (BucketSpec(pieces), BucketSpec(pieces[1:2])):
        cuts = spec.even_cuts(32, 2)
        assert (cuts[0], cuts[-1]) == (0, spec.numel)
        assert (np.diff(cuts) > 0).all()
        filled = spec.nonzeros(cuts[:-1], cuts[1:], 2)
        assert filled.max() < 1.1 * filled.mean()
        even = spec.cuts(32)
        assert spec.nonzeros(even[:-1], even[1:], 2).max() > 5 * filled.mean()


@given(
    rows=st.integers(2, 300), width=st.integers(1, 40), blocks=st.integers(1, 9),
    density=st.sampled_from([0.02, 0.3]),
)  # fmt: skip
def test_even_cuts_cut_no_row(rows, width, blocks, density):
    law = Sparsity(law="zipf", density=density, rows=rows)
    spec = BucketSpec(((law, rows * width, 0, rows * width),) * 2)
    cuts = spec.even_cuts(blocks, 2)
    assert (cuts[0], cuts[-1]) == (0, 2 * rows * width)
    assert (np.diff(cuts) >= 0).all()
    assert (cuts % width == 0).all()


@given(numel=st.integers(0, 99), blocks=st.integers(1, 9), density=st.floats(0.01, 1.0))
def test_even_cuts_of_elements_that_are_alike_are_as_long_as_each_other(numel, blocks, density):
    spec = BucketSpec.uniform(numel, density)
    np.testing.assert_array_equal(spec.even_cuts(blocks, 3), spec.cuts(blocks))
