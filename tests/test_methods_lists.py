"""A gradient that is handed over as a list of non-zeros: the same packets and bits as its array."""

import numpy as np
import pytest

from commsched.exchange.endpoint import open_endpoint
from commsched.exchange.lockstep import exchange, fresh_states
from commsched.exchange.method import resolved
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.kernels.merge import listed
from tests.support.gradients import SUPPORTS, bits, gradients, group, rounded, spec

SHAPES = [(1, 1), (1, 3), (2, 2)]
EVERYONE = group(2, 3)
NAMES = sorted(
    {m.name for m in (*METHODS.values(), *legal_methods(EVERYONE)) if m.takes_lists(EVERYONE)}
)


def run(method, states, on, numel):
    """Run a launch in one process; return the bytes that all ranks sent."""
    sent = 0
    for phase in map(resolved, method.phases(spec(numel), on)):
        held = [open_endpoint(phase, state) for state in states]
        sent += exchange(phase.schedule, held)
        for state, each in zip(states, held, strict=True):
            phase.give(state, each.result())
    return sent


def test_the_methods_that_take_lists():
    assert {"node-union", "centralised", "balanced", "sparse-ps", "ring+coo"} < set(NAMES)
    assert find_method("zen").takes_lists(group(1, 4))
    assert not find_method("zen").takes_lists(group(2, 2))  # dense inside nodes


@pytest.mark.by_day(45)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", [*NAMES, "zen", "zen:hierarchical"])
def test_lists_and_arrays_have_equal_packets_and_sums(name, shape):
    method, on = find_method(name), group(*shape)
    if not method.takes_lists(on):
        return
    numel = 300
    noise = [1 + abs(r) for r in rounded(on.size, numel)]  # the order of additions shows
    for kind in SUPPORTS:
        drawn = gradients(kind, on.size, numel, 3)
        grads = [g * v for g, v in zip(drawn, noise, strict=True)]
        arrays = fresh_states([g.copy() for g in grads], 3, "b0")
        lists = fresh_states([np.full(numel, np.nan, np.float32) for _ in grads], 3, "b0")
        for state, gradient in zip(lists, grads, strict=True):
            state["list"] = listed(gradient)
        assert run(method, arrays, on, numel) == run(method, lists, on, numel)
        for array, of in zip(arrays, lists, strict=True):
            found = np.zeros(numel, np.float32)
            index, values = of["list"]
            assert (np.diff(index) > 0).all()
            found[index] = values
            np.testing.assert_array_equal(bits(found), bits(array["result"]))
