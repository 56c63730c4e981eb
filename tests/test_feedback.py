"""Error feedback around any lossy codec: nothing is lost, nothing grows, on every way that adds."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.pair import Pair, encode_with_feedback, illegal, route
from commsched.exchange.registry import find_method
from commsched.machine.model import CodecRate, Device
from tests.support.gradients import group, rounded, spec
from tests.support.packets import encoded, round_trip
from tests.test_codecs_lossy import FED, FEEDBACK, LOSSY

WAYS = ("ring", "tree", "direct", "halving-doubling", "hierarchical")
ADDED = [name for name in FEEDBACK if CODECS[name].addable]
HALF_ULP = 2.0**-24  # of float32, relative


def test_every_lossy_codec_has_feedback_or_says_why_not():
    without = {name for name in LOSSY if name not in FEEDBACK and f"{name}:feedback" not in FED}
    assert without == {name for name in LOSSY if CODECS[name].no_feedback}
    assert {name.partition(":")[0] for name in without} == {"dgc", "sign"}


@pytest.mark.by_day(22)
@pytest.mark.parametrize("name", FEEDBACK)
@given(numel=st.integers(1, 3000), seed=st.integers(0, 9))
def test_a_packet_and_what_it_leaves_are_the_gradient_but_for_one_rounding(name, numel, seed):
    values = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
    left = values.copy()
    CODECS[name].subtract(encoded(name, values), left)
    sent = round_trip(name, values).astype(np.float64)
    assert (np.abs(sent + left - values) <= HALF_ULP * np.abs(left)).all()


# --- Real numbers, several steps and ranks. ---


def summed(method, shape, numel, count=4):
    """What was sent and is left after some steps, the gradients' sum, and the largest wanted."""
    ranks = shape[0] * shape[1]
    states = fresh_states([np.zeros(numel, np.float32) for _ in range(ranks)], 3, "b0")
    sent, total, size = np.zeros(numel), np.zeros(numel), 0.0
    for step in range(count):
        grads = rounded(ranks, numel, step)
        for state, gradient in zip(states, grads, strict=True):
            state["gradient"][:] = gradient
            state["step"] = step
            wanted = gradient + state.get("lost", np.float32(0))
            size += float(np.abs(wanted).max())
        run_method(method, spec(numel), group(*shape), states)
        sent += states[0]["result"]
        total += np.sum(grads, axis=0, dtype=np.float64)
    left = np.sum([state["lost"] for state in states], axis=0, dtype=np.float64)
    return sent, left, total, size


@pytest.mark.by_day(44)
@pytest.mark.parametrize("shape", [(1, 3), (2, 2)], ids=str)
@pytest.mark.parametrize("name", FEEDBACK)
def test_what_was_sent_and_is_left_is_the_sum_but_for_roundings_of_float32(name, shape):
    numel = 2500
    sent, left, total, size = summed(Pair("all-gather", name), shape, numel)
    # An element is rounded when it is added to what is left, when that is taken off, and when it is
    # summed; it and what is sent of it are at most twice the largest. A spectrum is transformed.
    roundings = 3 + (np.log2(numel) * np.sqrt(numel) if name.startswith("fft") else 0)
    assert np.abs(sent + left - total).max() <= roundings * HALF_ULP * 2 * size


@pytest.mark.by_day(70)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (2, 3)], ids=str)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ADDED)
def test_ranks_that_merge_keep_what_they_round_away(name, way, shape):
    ranks = shape[0] * shape[1]
    sent, left, total, size = summed(Pair(way, name), shape, 200)
    # At most `ranks` additions and as many losses that are added up, of partial sums.
    assert np.abs(sent + left - total).max() <= (2 * ranks + 2) * HALF_ULP * size


def test_a_way_that_makes_a_sum_on_several_ranks_is_refused():
    message = "equal sums on several ranks, which would all keep the loss of codec 'fp16:feedback'"
    with pytest.raises(CommschedError, match=message):
        Pair("doubling", "fp16:feedback").phases(spec(10), group(1, 4))
    for name in ("randomk:0.3", "fp16", "coo"):
        assert illegal(route("doubling", group(1, 4)), CODECS[name]) is None


# --- Nothing grows. ---


@pytest.mark.parametrize(
    "name", ["terngrad", "qsgd:2", "quant:1", "quant:2", "randomk:0.01:unbiased"]
)
def test_what_an_unbiased_codec_leaves_does_not_grow(name):
    """Of 2048 normal values these may leave more than they get; some would for ever."""
    values = np.random.default_rng(0).standard_normal(2048).astype(np.float32)
    grown, kept = values.copy(), values.copy()
    for step in range(150):
        for left, codec in ((grown, CODECS[name]), (kept, CODECS[f"{name}:feedback"])):
            left += values
            with np.errstate(over="ignore", invalid="ignore"):  # of what grows without bound
                codec.subtract(codec.encode(left, {"seed": 1, "step": step}), left)
    size = np.linalg.norm(values)
    # A share of 1 % in packets worth 100/128 of it: some 130 steps' gradients are on the way. One
    # bit of values like these is worth a sixteenth of what it says, and sixteen gradients wait.
    most = {"randomk:0.01:unbiased": 130, "quant:1": 30}
    assert np.linalg.norm(kept) < most.get(name, 10) * size
    if name in most:
        assert not np.abs(grown).max() <= 1e6 * size


# --- Names and seconds. ---


def test_a_codec_with_feedback_of_its_own_gets_no_more():
    assert CODECS["topk:0.01:feedback"] is CODECS["topk:0.01"]
    assert CODECS["topk/qsgd:4:feedback"] is CODECS["topk/qsgd:4"]
    assert CODECS["fp16:feedback:feedback"] is CODECS["fp16:feedback"]
    assert CODECS["qsgd:04:feedback"].name == "qsgd:4:feedback"
    assert find_method("ring+bf16:feedback").name == "ring+bf16:feedback"
    assert "topk:0.01:forget:feedback" in CODECS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("coo:feedback", "codec 'coo:feedback': a lossless codec has no loss to feed back"),
        ("dgc:0.01:feedback", "codec 'dgc:0.01:feedback': its velocity keeps what is not sent"),
        ("sign:vote:feedback", "a vote does not show a loss; use 'sign:sum'"),
        ("fp17:feedback", "no codec named 'fp17'"),
        (":feedback", "no codec named ''"),
        ("topk/fp16:feedback/bloom", "'fp16:feedback' cannot code selected values"),
    ],
)
def test_feedback_that_cannot_be_is_refused_in_one_sentence(name, message):
    with pytest.raises(CommschedError, match=re.escape(message)):
        CODECS[name]
    assert name not in CODECS


def test_a_measured_rate_of_the_codec_serves_with_feedback():
    rate = CodecRate(encode=1.0, add=2.0, decode=4.0)
    own = CodecRate(encode=8.0, add=2.0, decode=4.0)
    known = {"fp16": rate, "qsgd:4": rate, "terngrad:feedback": own}
    device = Device(name="d", memory=1e9, bandwidth=1e9, flops=1e9, codecs=known)
    assert CODECS["fp16:feedback"].rate(device) == rate
    assert CODECS["terngrad:feedback"].rate(device) == own
    # An unbiased codec may have to encode twice, decode, and look at three products.
    assert CODECS["qsgd:4:feedback"].rate(device).encode == 2 * 1.0 + 4.0 + 12e-9


@pytest.mark.parametrize("name", ["randomk:0.01:unbiased:feedback", "quant:1:feedback"])
def test_the_factor_of_large_values_is_that_of_small_ones(name):
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    small, large = (round_trip(name, values * np.float32(s)) for s in (1.0, 2.0**60))
    np.testing.assert_array_equal(small * np.float32(2.0**60), large)


@pytest.mark.parametrize(
    "name",
    ["bf16:feedback", "topk:0.5/bf16", "topk:0.5/bf16/bloom", "randomk:0.1:unbiased:feedback"],
)
def test_of_a_finite_sum_whose_packet_is_infinite_nothing_is_kept(name):
    """The packet tells all ranks; what was kept before goes on as if the step had not been."""
    codec, values = CODECS[name], np.random.default_rng(2).standard_normal(300).astype(np.float32)
    state = fresh_states([values.copy()], 0, "b0")[0]
    encode_with_feedback(codec, state)
    before = state["lost"].copy()
    state["gradient"][:] = np.finfo(np.float32).max
    sent = np.empty_like(values)
    codec.decode(encode_with_feedback(codec, state), sent)
    assert not np.isfinite(sent).all()
    np.testing.assert_array_equal(state["lost"], before)
    state["gradient"][:] = values
    codec.decode(encode_with_feedback(codec, state), sent)
    assert np.isfinite(sent).all()
    assert np.isfinite(state["lost"]).all()
    assert state["lost"] is not state["gradient"]
