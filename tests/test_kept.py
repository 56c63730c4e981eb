"""What a state keeps from step to step: with it alone, any method goes on to the same bits."""

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.pair import Pair
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.exchange.state import kept_of, restore
from commsched.net.bucket import BucketSpec
from tests.support.small_plans import machine

NUMEL, RANKS, BEFORE, AFTER = 600, 4, 3, 3
GROUP = machine(nodes=2, lanes=2).everyone
MORE = (
    "topk:0.05:reused",
    "topk:0.05:sampled",
    "dgc:0.05:2",
    "powersgd:3",
    "ok-topk:0.05",
    "adaqp:4:2",
)
NAMES = [m.name for m in legal_methods(GROUP, more=MORE) if not m.name.startswith("native")]


def gradients(step):
    """Non-zero in a part of the elements that is the same on all ranks, for the mask."""
    random = np.random.default_rng(step)
    drawn = random.standard_normal((RANKS, NUMEL)).astype(np.float32)
    drawn[:, NUMEL // 3 :] = 0
    return drawn


def go(method, states, steps):
    """The results of some steps on all ranks, and their decisions."""
    spec, found = BucketSpec.uniform(NUMEL), []
    for step in steps:
        for state, gradient in zip(states, gradients(step), strict=True):
            state["step"] = step
            state["gradient"][:] = gradient
        decisions = run_method(method, spec, GROUP, states)
        found.append((np.array([state["result"] for state in states]), decisions))
    return found


def fresh():
    return fresh_states([np.zeros(NUMEL, np.float32) for _ in range(RANKS)], 5, "b0")


@pytest.mark.by_day(51)
@pytest.mark.parametrize("name", NAMES)
def test_a_method_goes_on_from_what_is_kept(name):
    method, states = find_method(name), fresh()
    go(method, states, range(BEFORE))
    again = fresh()
    for new, old in zip(again, states, strict=True):
        restore(new, {k: copied(v) for k, v in kept_of(old).items()})
    want = go(method, states, range(BEFORE, BEFORE + AFTER))
    found = go(method, again, range(BEFORE, BEFORE + AFTER))
    for (here, decided), (there, other) in zip(found, want, strict=True):
        np.testing.assert_array_equal(here, there)
        assert decided == other


def copied(value):
    """As a file would give it back: arrays, numbers and tuples of them, nothing else."""
    if isinstance(value, tuple):
        return tuple(map(copied, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    assert type(value) in (int, float), value
    return value


def test_error_feedback_is_among_what_is_kept():
    """Without what is kept the exam above would fail: it does not pass by leaving nothing out."""
    for name in ("all-gather+topk:0.01", "powersgd:2", "all-gather+dgc:0.001", "ok-topk:0.01"):
        method, states = find_method(name), fresh()
        go(method, states, range(BEFORE))
        want = go(method, states, [BEFORE])
        found = go(method, fresh(), [BEFORE])
        assert (found[0][0] != want[0][0]).any(), name


def test_every_codec_and_method_sits_the_exam():
    codecs = {find_method(name).codec.name for name in NAMES if isinstance(find_method(name), Pair)}
    assert set(CODECS) <= codecs
    assert set(METHODS) <= set(NAMES)
