"""A selection in front of a sparse sum gives the bits of the same selection in an all-gather."""

import numpy as np
import pytest

from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from tests.support.gradients import group

NUMEL, STEPS = 2000, 3
SUMS = [name for name, method in METHODS.items() if method.sparse]


def summed(name, members):
    """Sums of all steps and what is left after them, with integer gradients."""
    method, rng = find_method(name), np.random.default_rng(7)
    states = fresh_states([np.zeros(NUMEL, np.float32) for _ in members.ranks], name="x")
    sums = []
    for step in range(STEPS):
        for state in states:
            state["step"] = step
            state["gradient"][:] = rng.integers(-99, 100, NUMEL)
        run_method(method, BucketSpec.uniform(NUMEL), members, states)
        sums.append(states[0]["result"].copy())
    return np.array(sums), np.array([state.get("lost", 0) for state in states])


@pytest.mark.parametrize("selection", ["topk:0.05", "topk:0.05:forget", "dgc:0.05", "threshold:2"])
@pytest.mark.parametrize("name", SUMS)
def test_the_sum_of_selections_is_that_of_an_all_gather(name, selection):
    members = group(2, 2)
    wanted, kept = summed(f"all-gather+{selection}", members)
    found, left = summed(f"{name}+{selection}", members)
    order = 1e-7 if "dgc" in selection else 0.0  # momentum makes fractions: sums round by order
    np.testing.assert_allclose(found, wanted, rtol=order)
    np.testing.assert_array_equal(left, kept)
    assert np.count_nonzero(wanted[0])


def test_each_allowed_selection_stands_before_every_sparse_sum():
    found = {m.name for m in legal_methods(group(2, 2), more=["topk:0.05", "fp16", "powersgd:4"])}
    before = {name for name in found if name.partition("+")[0] in SUMS and "+" in name}
    assert before == {f"{name}+topk:0.05" for name in SUMS}


@pytest.mark.parametrize("name", ["zen+fp16", "zen+topk:0.1/bloom:0.01:p1", "zen+randomk:0.1"])
def test_only_plain_selections_stand_before_a_sum(name):
    with pytest.raises(CommschedError, match="only a codec that selects values"):
        find_method(name)


def test_only_sparse_sums_follow_a_selection():
    with pytest.raises(CommschedError, match="'powersgd:4' is no sparse sum"):
        find_method("powersgd:4+topk:0.05")


def test_a_gradient_that_is_selected_whole_keeps_its_law():
    zipf = Sparsity(law="zipf", density=0.01, rows=500)
    pieces = ((zipf, NUMEL, 0, NUMEL),)
    assert find_method("zen+topk:0.05").selected(BucketSpec(pieces)).pieces == pieces
    ((thin, *_),) = find_method("zen+topk:0.001").selected(BucketSpec(pieces)).pieces
    assert thin.density == pytest.approx(0.001)
