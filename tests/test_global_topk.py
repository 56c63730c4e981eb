"""Sums of the largest elements by several exchanges: what is not sent is kept, k stays k."""

import numpy as np
import pytest

from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import METHODS, find_method
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec
from tests.support.gradients import bits, gradients, group, spec
from tests.test_bytes import launched
from tests.test_methods import assert_equal_bits, steps
from tests.test_sparse_methods import expected_bytes, wire_only

FAMILIES = ("hitopk", "gtopk", "ok-topk")
SHAPES = [(1, 1), (1, 3), (3, 1), (2, 2), (3, 2)]


@pytest.mark.parametrize("share", ["0.02", "0.3", "1"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_sent_is_kept(family, shape, share):
    sent = total = np.zeros(150, np.float32)
    states = []
    for grads, states in steps(METHODS[f"{family}:{share}"], shape, 5, 150, 3):
        sent = sent + states[0]["result"]  # whole numbers: every sum is exact
        total = total + np.sum(grads, axis=0)
        assert_equal_bits(states)
    left = np.sum([state.get("lost", np.zeros(150)) for state in states], axis=0)
    np.testing.assert_array_equal(sent + left, total)


@pytest.mark.parametrize("family", FAMILIES)
def test_nan_is_seen_by_all_ranks_and_not_kept(family):
    grads = gradients("full", 4, 60)
    grads[1][7] = np.nan
    states = fresh_states(grads)
    run_method(METHODS[f"{family}:0.1"], spec(60), group(2, 2), states)
    for state in states:
        assert np.isnan(state["result"][7])
        assert np.isfinite(state["lost"]).all()


def test_a_tree_sends_the_largest_of_the_sum():
    grads = [np.zeros(50, np.float32) for _ in range(4)]
    for rank, values in enumerate(grads):
        values[10], values[20 + rank] = 2, 3  # 8 in the sum, 3 each
    states = fresh_states(grads)
    run_method(METHODS["gtopk:0.04"], spec(50), group(1, 4), states)
    for state in states:
        assert np.count_nonzero(state["result"]) <= 2
        assert state["result"][10] == 8


@pytest.mark.parametrize("family", FAMILIES)
def test_nodes_that_differ_and_empty_gradients_are_no_obstacle(family):
    uneven = Group(ranks=(0, 1, 2), nodes=(0, 0, 1))
    for kind in ("empty", "alone", "one"):
        states = fresh_states(gradients(kind, 3, 40))
        run_method(METHODS[f"{family}:0.1"], spec(40), uneven, states)
        for state in states[1:]:
            np.testing.assert_array_equal(bits(state["result"]), bits(states[0]["result"]))


def test_regions_hold_as_many_of_the_largest_and_serve_64_steps():
    rng = np.random.default_rng(2)
    method, seen = METHODS["ok-topk:0.1"], []
    states = fresh_states([np.zeros(4000, np.float32) for _ in range(4)])
    for step in (0, 1, 63, 64):
        for state in states:
            scale = np.where(np.arange(4000) < 500, 10.0, 0.1) if step < 64 else 1.0
            state["gradient"][:] = rng.standard_normal(4000) * scale
            state["step"] = step
        run_method(method, spec(4000), group(1, 4), states)
        seen.append(states[0]["ok cuts"])
        assert all(state["ok cuts"] == seen[-1] for state in states)
    assert seen[0] == seen[1] == seen[2] != seen[3]
    assert seen[0][3] < 500  # three quarters of the largest lie there


def test_sums_that_crowd_in_one_region_are_dealt_out_before_they_go_to_all():
    """Regions are those of step 0; then all that is large lies in the last one."""
    rng = np.random.default_rng(3)
    method, shape, pulled = METHODS["ok-topk:0.05"], (1, 4), {}
    states = fresh_states([np.zeros(4000, np.float32) for _ in range(4)])
    for step, large in ((0, 4000), (1, 400)):
        grads = [rng.standard_normal(4000).astype(np.float32) for _ in range(4)]
        for state, values in zip(states, grads, strict=True):
            values[: 4000 - large] *= 1e-3
            values[4000 - large :] *= 1 + 9 * step
            state.get("lost", values[:0])[:] = 0
            state["gradient"][:] = values
            state["step"] = step
        decided = run_method(method, spec(4000), group(*shape), states)["balance"]
        pulled[step] = [len(state["ok kept"].index) for state in states]
        assert_equal_bits(states)
        sent = np.flatnonzero(states[0]["result"])
        assert sum(pulled[step]) == len(sent)
        if step:
            assert decided > 2 * 200 / 4
            assert decided == len(sent)  # one rank had them all
            assert (sent >= 3600).all()
            assert max(pulled[step]) - min(pulled[step]) <= 1
        else:
            assert decided == max(pulled[step]) <= 2 * 200 / 4


@pytest.mark.parametrize("together", [0.0, 1.0])
def test_the_threshold_of_the_sums_follows_what_ranks_keep_for_later(together):
    """Of ranks that agree in nothing, or in much: it grows, and would pass an old threshold."""
    numel, count, sent = 20_000, 200, []
    base = np.random.default_rng(1).standard_normal(numel)
    states = fresh_states([np.zeros(numel, np.float32) for _ in range(8)])
    for step in range(30):
        for rank, state in enumerate(states):
            own = np.random.default_rng([step, rank]).standard_normal(numel)
            state["gradient"][:] = together * base + own
            state["step"] = step
        run_method(METHODS["ok-topk:0.01"], spec(numel), group(1, 8), states)
        assert_equal_bits(states)
        sent.append(np.count_nonzero(states[0]["result"]))
    assert sent[0] == count
    assert max(sent[10:]) <= 3 * count
    assert np.mean(sent[10:]) <= 2 * count


def test_bytes_are_what_the_papers_say():
    numel, share = 2**20, 0.01
    spread, k = BucketSpec.uniform(numel), np.ceil(0.01 * 2**20)
    on = wire_only(8)
    tree = price(METHODS[f"gtopk:{share}"], spread, on, on.everyone)
    assert tree.seconds == pytest.approx(2 * 3 * 8 * k * 1e-9, rel=1e-3)  # 2 log2 p messages of k
    regions = price(METHODS[f"ok-topk:{share}"], spread, on, on.everyone)
    words = regions.sent / 4
    assert 2 * k * 7 / 8 <= words <= 6 * k * 7 / 8


def test_bytes_that_are_sent_are_what_the_papers_say():
    """Of ranks that agree on the largest, as the price of Ok-Topk's paper supposes."""
    numel, share, members = 20_000, 0.01, group(8, 1)
    spread, k = BucketSpec.uniform(numel), int(share * numel)
    base = np.random.default_rng(1).standard_normal(numel)
    total = {}
    for name in (f"gtopk:{share}", f"ok-topk:{share}"):
        states, sent = fresh_states([np.zeros(numel, np.float32) for _ in range(8)]), []
        for step in range(4):
            for rank, state in enumerate(states):
                own = np.random.default_rng([step, rank]).standard_normal(numel)
                state["gradient"][:] = 10 * base + own
                state["step"] = step + 1
            encoded, found = launched(METHODS[name], spread, members, states)
            np.testing.assert_array_equal(encoded, found)
            sent.append(found)
        total[name] = np.array(sent)
    tree, regions = total.values()
    # Lists of k, with a header of 24 B, go up the tree and down: 7 each, of 8 ranks.
    np.testing.assert_array_equal(tree.sum(axis=1), 2 * 7 * (24 + 8 * k))
    assert tree.mean() == expected_bytes(METHODS[f"gtopk:{share}"], spread, (8, 1))
    words = regions[1:].mean() / 4  # the first step has no threshold, nor regions
    assert 2 * k * 7 / 8 <= words <= 6 * k * 7 / 8


@pytest.mark.parametrize("family", FAMILIES)
def test_the_share_is_read_strictly(family):
    assert find_method(family).name == f"{family}:0.01"
    with pytest.raises(CommschedError, match=f"method '{family}:0': the share that is kept"):
        find_method(f"{family}:0")
