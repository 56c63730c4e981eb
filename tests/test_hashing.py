"""Partition by hash: even, the same everywhere, and what hierarchical hashing leaves over."""

from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import METHODS
from commsched.kernels import hashing
from commsched.kernels.hashing import (
    below,
    grouped,
    grouped_in_memory,
    hierarchical,
    index_sets,
    murmur,
    placed,
)
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from tests.support.gradients import group


def test_the_hash_is_the_finaliser_of_murmur3():
    # fmix32 of 0, 1 and 0xFFFFFFFF, from its definition
    found = murmur(np.array([0, 1, 2**32 - 1]), 0)
    assert found.tolist() == [0, 0x514E28B7, 0x81F16F39]


@given(numel=st.integers(0, 3000), parts=st.sampled_from([1, 2, 3, 8, 255, 256, 257, 5000]))
def test_groups_are_the_parts_in_ascending_order(numel, parts):
    index = np.arange(0, 7 * numel, 7)
    order, ends = grouped(index, parts)
    assert len(ends) == parts + 1
    owner = below(index, parts, hashing.SEED) if parts > 1 else np.zeros(numel, np.int64)
    for part in np.unique(owner).tolist():
        got = order[ends[part] : ends[part + 1]]
        np.testing.assert_array_equal(got, np.flatnonzero(owner == part))
    assert sorted(order.tolist()) == list(range(numel))


def test_the_parts_of_consecutive_pieces_are_the_parts_of_the_whole(monkeypatch):
    whole = grouped(np.arange(1000), 5)
    monkeypatch.setattr(hashing, "CHUNK", 7)
    pieces = grouped(np.arange(1000), 5)
    np.testing.assert_array_equal(whole.order, pieces.order)
    assert whole.ends == pieces.ends


def clustered(numel: int, rng: np.random.Generator) -> np.ndarray:
    """Runs of 256 elements, as rows of an embedding are, all in the first eighth: ascending."""
    rows = rng.choice(numel // 8 // 256, numel // 50 // 256, replace=False)
    return np.sort((rows[:, None] * 256 + np.arange(256)).ravel())


DRAWN = {
    "uniform": Sparsity(law="uniform", density=0.02).support,
    "zipf": Sparsity(law="zipf", density=0.02, rows=2**14).support,
    "clustered": clustered,
}


@pytest.mark.parametrize("parts", [2, 8, 16, 64])
@pytest.mark.parametrize("kind", DRAWN)
def test_parts_of_drawn_supports_are_balanced_within_a_tenth(kind, parts):
    numel = 2**22
    support = DRAWN[kind](numel, np.random.default_rng(5))
    counts = np.diff(grouped(support, parts).ends)
    assert counts.max() < 1.1 * counts.mean()
    contiguous = np.histogram(support, parts, (0, numel))[0]
    if kind != "uniform":
        assert contiguous.max() > 1.5 * contiguous.mean()  # what the hash is for


@pytest.mark.parametrize("parts", [2, 8, 16])
@pytest.mark.parametrize("kind", DRAWN)
def test_memories_of_hierarchical_hashing_are_filled_within_a_tenth_of_each_other(kind, parts):
    support = DRAWN[kind](2**22, np.random.default_rng(6))
    memory = hierarchical(support, parts)
    counts = np.count_nonzero(memory.parallel, axis=1) + [len(rest) for rest in memory.serial]
    assert counts.sum() == len(support)
    assert counts.max() < 1.1 * counts.mean()


@given(numel=st.integers(0, 500), parts=st.integers(1, 9))
def test_every_element_has_one_owner_and_its_place_there(numel, parts):
    made = index_sets(np, numel, parts)
    np.testing.assert_array_equal(np.sort(made.order), np.arange(numel))
    np.testing.assert_array_equal(made.place[made.order], np.arange(numel))
    for part in range(parts):
        own = made.part(part)
        np.testing.assert_array_equal(own, np.sort(own))
        np.testing.assert_array_equal(
            np.diff(grouped(own, parts).ends), len(own) * (np.arange(parts) == part)
        )


@pytest.mark.parametrize(("tries", "share"), [(1, 0.21), (2, 0.09), (3, 0.042), (4, 0.0205)])
def test_the_serial_share_is_what_zen_reports_for_memory_of_twice_the_non_zeros(tries, share):
    index = Sparsity(law="uniform", density=0.01).support(10**7, np.random.default_rng(1))
    serial = sum(map(len, placed(index, 4, tries).serial))
    assert serial / len(index) == pytest.approx(share, rel=0.1)
    if share > 0.2:  # a tenth of twice the non-zeros
        with pytest.raises(CommschedError, match="are left for a serial area"):
            hierarchical(index, 4, tries)
    else:
        assert sum(map(len, hierarchical(index, 4, tries).serial)) == serial


@given(numel=st.integers(0, 3000), parts=st.integers(1, 8), seed=st.integers(0, 99))
def test_hierarchical_hashing_places_every_index_in_its_part_once(numel, parts, seed):
    index = np.sort(np.random.default_rng(seed).choice(10**6, numel, replace=False))
    memory = hierarchical(index, parts)
    order, ends = grouped(index, parts)
    for part in range(parts):
        placed = memory.parallel[part]
        got = np.concatenate([placed[placed > 0] - 1, memory.serial[part]])
        want = index[order[ends[part] : ends[part + 1]]]
        np.testing.assert_array_equal(np.sort(got), want)


@given(numel=st.integers(0, 3000), parts=st.integers(1, 300), seed=st.integers(0, 99))
def test_the_memories_give_the_groups_of_counting(numel, parts, seed):
    index = np.sort(np.random.default_rng(seed).choice(10**6, numel, replace=False))
    order, ends = grouped_in_memory(index, parts)
    counted = grouped(index, parts)
    np.testing.assert_array_equal(order, counted.order)
    assert ends == counted.ends


def test_a_serial_area_that_overflows_is_refused():
    index = np.arange(10**5)
    crowd = index[below(index, 8, hashing.SEED) == 3]  # all in one part
    with pytest.raises(CommschedError, match=r"are left for a serial area of \d+; allowed are"):
        hierarchical(crowd, 8)
    gradient = np.zeros(10**5, np.float32)
    gradient[crowd] = 1.0
    spec, members = BucketSpec.uniform(10**5, 0.1), group(1, 8)
    for name, refused in (("zen", False), ("zen:hierarchical", True)):
        states = fresh_states([gradient.copy() for _ in range(8)])
        expected = pytest.raises(CommschedError, match="are left") if refused else nullcontext()
        with expected:
            run_method(METHODS[name], spec, members, states)
            np.testing.assert_array_equal(states[7]["result"], 8 * gradient)
