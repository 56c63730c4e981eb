"""ShadowSync: merges at fixed step numbers, and what they do to the parameters."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.program.model import Kind, Op
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from tests.support.small_plans import graph, machine, strategy_plan

SHADOW = STRATEGIES["shadow"]
MERGE = Op(kind=Kind.MERGE, name="m", stream="decode", launch=0)


def made(ranks=4, jitter=0.0, **params):
    return strategy_plan(graph([3000, 40000]), machine(1, ranks, jitter), "shadow", **params)


@given(every=st.integers(1, 6), lag=st.integers(0, 6), jitter=st.sampled_from([0.0, 0.5]))
def test_copies_and_merges_come_at_fixed_steps(every, lag, jitter):
    lag = min(lag, every)
    steps = 15
    placed = simulate(made(jitter=jitter, every=every, lag=lag), steps).placed
    copied = [p.step for p in placed if p.op.name == "a0/exchange"]
    merged = [p.step for p in placed if p.op.name == "a0/merge"]
    assert copied == list(range(every - 1, steps, every))
    assert merged == [step + lag for step in copied if step + lag < steps]


def test_ranks_do_not_wait_for_each_other_but_in_merges():
    alone = simulate(made(jitter=0.3, every=8, lag=8), 7)
    compute = [p for p in alone.placed if p.op.stream == "compute"]
    for before, after in itertools.pairwise(compute):
        np.testing.assert_allclose(after.start, before.end, rtol=1e-12)


def merged(rounds, seed=0, ranks=3, numel=20, **params):
    """Merge random parameters some times: what one rank holds, and what all copied each time."""
    rng = np.random.default_rng(seed)
    plan, state, local = made(ranks, **params), {}, np.zeros(numel, np.float32)
    found = []
    for _ in range(rounds):
        copies = rng.standard_normal((ranks, numel)).astype(np.float32)
        local = rng.standard_normal(numel).astype(np.float32)
        before = local.copy()
        total = copies.sum(axis=0, dtype=np.float32)
        SHADOW.merge(plan, MERGE, local, total, state)
        found.append((before, total / np.float32(ranks), local))
    return found


def test_the_average_draws_by_alpha_to_the_bit():
    for before, mean, after in merged(3, alpha=0.25):
        want = np.float32(0.75) * before + np.float32(0.25) * mean
        np.testing.assert_array_equal(after, want)


def test_bmuf_filters_the_mean_by_a_momentum():
    common = speed = None
    for before, mean, after in merged(4, rule="bmuf", alpha=0.5, rate=0.5, momentum=0.75):
        common = mean.astype(np.float64) if common is None else common
        speed = 0.75 * (0.0 if speed is None else speed) + 0.5 * (mean - common)
        common = common + speed
        np.testing.assert_allclose(after, 0.5 * before + 0.5 * common, rtol=1e-5, atol=1e-6)


def test_easgd_draws_to_a_centre_that_follows_later():
    centre = None
    for before, mean, after in merged(4, rule="easgd", alpha=0.25, rate=0.5):
        centre = mean.astype(np.float64) if centre is None else centre
        np.testing.assert_allclose(after, 0.75 * before + 0.25 * centre, rtol=1e-5, atol=1e-6)
        centre = centre + 0.5 * (mean - centre)


def test_with_alpha_one_and_no_lag_every_rule_ends_at_the_common_model():
    for rule in ("average", "bmuf"):
        for _, mean, after in merged(3, rule=rule, alpha=1.0, rate=1.0, lag=0):
            np.testing.assert_allclose(after, mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("rule", "words"), [("average", 0), ("bmuf", 2), ("easgd", 1)])
def test_memory_counts_what_a_rule_keeps(rule, words):
    plan = made(rule=rule)
    assert SHADOW.memory(plan).buckets == 4 * 43000 * (2 + words)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"every": 2, "lag": 3}, "lag cannot be 3 where every is 2"),
        ({"alpha": 1.5}, "alpha cannot be 1.5; allowed: 0 to 1"),
        ({"alpha": "half"}, "alpha cannot be 'half'; allowed: 0 to 1"),
        ({"rule": "gossip"}, "rule cannot be 'gossip'; allowed: average, bmuf, easgd"),
    ],
)
def test_impossible_parameters_are_refused(params, message):
    with pytest.raises(CommschedError, match=message):
        made(**params)
