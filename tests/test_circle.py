"""The building blocks of collectives: circles, and the order of nodes."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.machine.model import Group
from commsched.schedule.circles import circles, everyone, ring_all_gather, ring_reduce_scatter
from commsched.schedule.nesting import tree_order
from commsched.schedule.registry import COLLECTIVES


def placed(*nodes: int) -> Group:
    """A group whose member i sits on node nodes[i]."""
    return Group(ranks=tuple(range(len(nodes))), nodes=nodes)


@given(count=st.integers(1, 5), places=st.integers(1, 5))
def test_many_circles_at_once_are_single_circles_in_parallel(count, places):
    table = np.random.default_rng(count).permutation(count * places).reshape(count, places)
    for build in (ring_reduce_scatter, ring_all_gather):
        together = build(circles(table, table, table + 1), merged=3)
        single = [build(circles([row], row[None], row[None] + 1), merged=3) for row in table]
        for a, *apart in zip(together, *single, strict=True):
            assert {(a.add, a.merged)} == {(b.add, b.merged) for b in apart}
            beside = np.concatenate([np.stack(b[:4]) for b in apart], axis=1)
            columns = [r[:, np.argsort(r[0])] for r in (np.stack(a[:4]), beside)]
            np.testing.assert_array_equal(*columns)


def test_a_ring_of_many_ranks_copies_nothing():
    on = everyone(placed(*np.arange(32_768) // 8))
    src, dst = on.src, on.dst
    for _, round_ in zip(range(100), ring_reduce_scatter(on), strict=False):
        assert round_.src is src
        assert round_.dst is dst
        assert np.shares_memory(round_.first, on.first)
        assert np.shares_memory(round_.stop, on.stop)


def test_a_ring_keeps_its_pattern_from_first_round_to_last():
    rounds = list(COLLECTIVES["ring"](placed(*[0, 1, 2] * 4)).rounds())
    assert len({id(r.src) for r in rounds}) == len({id(r.dst) for r in rounds}) == 1


def test_tables_cannot_be_overwritten_by_a_reader():
    round_ = next(COLLECTIVES["ring"](placed(0, 0, 0, 0)).rounds())
    with pytest.raises(ValueError, match="read-only"):
        round_.first[0] = 1


@given(nodes=st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_the_tree_order_visits_each_node_once(nodes):
    order = tree_order(placed(*nodes))
    visited = [nodes[rank] for rank in order]
    changes = sum(a != b for a, b in pairwise(visited))
    assert sorted(order) == list(range(len(nodes)))
    assert changes == len(set(nodes)) - 1
