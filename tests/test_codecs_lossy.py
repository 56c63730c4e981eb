"""What every lossy codec promises: bounded error, no bias, feedback, and NaN that is seen."""

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.lockstep import run_method
from commsched.exchange.pair import Pair
from commsched.net.bucket import BucketSpec
from tests.support import sampling
from tests.support.gradients import gradients, group, spec
from tests.test_codecs import decoded, encoded, expected_bytes, round_trip
from tests.test_methods import steps

# Every registered family, and the members that differ from the listed one in more than a number.
MORE = (
    "topk:0.1:sampled",
    "topk:0.1:bisect",
    "topk:0.1:reused",
    "topk:1",
    "threshold:0",
    "dgc:0.1:2:0",
    "randomk:0.3",
    "randomk:0.3:unbiased",
    "qsgd:2",
    "qsgd:8",
    "quant:1",
    "quant:2",
    "quant:4",
    "quant:8:nearest",
    "quant:1:64",
    "adaqp:4",
    "adaqp:3:2",
    "sign:sum",
    "topk:0.1/fp16",
    "topk:0.1/qsgd:4",
    "topk:0.2:sampled/quant:8",
    "threshold:1/onebit",
    "fp8:e5m2",
    "fp8:e4m3:4",
    "fft:0.5",
    "fit:exp",
    "topk:0.1/fit:poly",
    "topk:0.1/fit:exp",
    "topk:0.1/bloom:0.001",
    "topk:0.1/bloom:0.01:p1",
    "topk:0.1/bloom:0.01:p2",
    "topk:0.1/qsgd:4/bloom:0.001",
    "bloom:0.01:p1",
    "bloom:0.01:p2",
)
PLAIN = [*(name for name in CODECS if not CODECS[name].lossless), *MORE]
# What has no feedback of its own, with feedback around it.
FED = [
    f"{name}:feedback" for name in PLAIN if not (CODECS[name].feedback or CODECS[name].no_feedback)
]
LOSSY = [*PLAIN, *FED]
UNBIASED = [name for name in LOSSY if CODECS[name].unbiased]
FEEDBACK = [name for name in LOSSY if CODECS[name].feedback]
# What is sent is sent as it is, so that whole numbers are conserved to the last bit.
EXACT_FEEDBACK = [
    name
    for name in FEEDBACK
    if re.fullmatch(r"(topk|threshold|randomk|bloom)[^/]*(/bloom.*)?", name)
]


def normal(numel: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


ODD = {
    "nothing": np.zeros(0, np.float32),
    "one": np.array([2.5], np.float32),
    "one zero": np.zeros(1, np.float32),
    "all zero": np.zeros(1000, np.float32),
    "constant": np.full(1000, -3.0, np.float32),
    "huge": np.array([3.4e38, -3.4e38, 1.0, 0.0] * 200, np.float32),
    "tiny": np.array([1e-45, -1e-45, 1e-40, 0.0] * 200, np.float32),
    "one of many": np.eye(1, 3000, 77, dtype=np.float32)[0],
    "full": normal(3001),
}


# --- The exam. ---


@pytest.mark.parametrize("name", LOSSY)
def test_odd_gradients_are_coded_to_finite_numbers_of_their_size(name):
    scaled = 30.0 if "unbiased" in name else 2.0
    for kind, values in ODD.items():
        got = round_trip(name, values)
        with np.errstate(over="ignore"):
            largest = np.float32(scaled) * np.abs(values).max(initial=0)
            assert (np.abs(got) <= largest).all(), kind
        assert kind == "huge" or np.isfinite(got).all(), kind


@pytest.mark.by_day(22)
@pytest.mark.parametrize("name", FEEDBACK)
@given(numel=st.integers(1, 700), seed=st.integers(0, 9))
def test_feedback_gets_a_packet_that_takes_something_away(name, numel, seed):
    values = normal(numel, seed)
    left = values.copy()
    CODECS[name].subtract(encoded(name, values), left)
    # A compressor that leaves less than it got makes feedback converge (Karimireddy et al. 2019).
    assert np.linalg.norm(left) <= np.linalg.norm(values) * (1 + 1e-6)
    delivered = round_trip(name, values)
    np.testing.assert_allclose(delivered + left, values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", LOSSY)
def test_one_broken_element_is_seen_after_the_exchange(name):
    for broken, place in product((np.nan, np.inf, -np.inf), (0, 5, 699)):
        values = normal(700)
        values[place] = broken
        packet = encoded(name, values)
        for out in (decoded(name, packet, 700), normal(700, 1)):
            CODECS[name].add(packet, out)
            assert not np.isfinite(out[place])
        everything = np.full(700, broken, np.float32)
        assert not np.isfinite(round_trip(name, everything)).any()


@pytest.mark.by_day(3)
@pytest.mark.parametrize("name", UNBIASED)
def test_an_unbiased_codec_is_right_on_average(name):
    codec, draws = CODECS[name], 1500
    values = np.concatenate([normal(90), [0.0, 3.0, -3.0], np.zeros(7)]).astype(np.float32)
    state = {"seed": 3, "rank": 0, "name": "w"}
    out, got = np.empty_like(values), np.empty((draws, len(values)))
    for step in range(draws):
        codec.decode(codec.encode(values, state | {"step": step}), out)
        got[step] = out
    error = got.mean(axis=0) - values
    # 16-bit dither is off by at most 2**-17 of a level, and a level is at most 6. What comes less
    # than 12 times in all draws may not have come at all.
    spread = np.ptp(got, axis=0)
    rare = 12 / draws * np.where(spread > 0, spread, 3.0)
    slack = 5 * got.std(axis=0, ddof=1) / np.sqrt(draws) + rare + 6 * 2.0**-17
    # Five standard errors: 100 values of a right codec fail once in 17,000 seeds.
    assert (np.abs(error) <= slack).all()


@pytest.mark.parametrize("name", UNBIASED)
def test_random_codes_follow_seed_step_name_and_place(name):
    values, first = normal(300), {"seed": 1, "step": 2, "rank": 0, "name": "b"}

    def sent(start=0, **changes):
        return CODECS[name].encode(values, first | changes, start).tobytes()

    assert sent() == sent()
    assert len({sent(), sent(seed=2), sent(step=3), sent(name="c"), sent(start=300)}) == 5


@pytest.mark.by_day(33)
@pytest.mark.parametrize("name", LOSSY)
def test_bytes_are_predicted_for_full_gradients(name):
    numel, draws = 4001, 40
    expected = expected_bytes(name, BucketSpec.uniform(numel))
    sizes = [
        CODECS[name].encode(np.abs(normal(numel, seed)) + 4, {"seed": seed, "step": 99}).nbytes
        for seed in range(draws)
    ]
    # A sampled threshold looks at all of so few values; only random places are left to vary.
    slack = 5 * np.std(sizes, ddof=1) / np.sqrt(draws) + (4 if "randomk" in name else 0)
    assert abs(np.mean(sizes) - expected) <= slack


@pytest.mark.by_day(16)
@pytest.mark.parametrize("name", LOSSY)
@given(content=st.binary(max_size=200), cut=st.integers(0, 60), flips=st.integers(0, 2**32 - 1))
def test_a_damaged_packet_is_refused_in_one_sentence_or_read(name, content, cut, flips):
    whole = encoded(name, normal(100))
    torn = whole[: max(0, len(whole) - 1 - cut)]
    mixed = whole.copy()
    mixed[np.random.default_rng(flips).integers(len(whole), size=3)] ^= 0xFF
    for packet in (np.frombuffer(content, np.uint8).copy(), torn, mixed):
        out = np.full(100, 7.0, np.float32)
        refused = refusal(name, packet, out)
        if refused:
            assert "\n" not in refused
            assert (out == 7.0).all()
        else:
            assert len(packet) == len(whole) or not CODECS[name].fixed


def refusal(name: str, packet: np.ndarray, out: np.ndarray) -> str:
    """What is said of a packet; nothing where it is read."""
    with np.errstate(all="ignore"):
        try:
            CODECS[name].decode(packet, out)
        except CommschedError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_packet_is_read_wherever_it_lies_in_a_message(name):
    packet = encoded(name, normal(777))
    wanted = decoded(name, packet, 777)
    for shift in (1, 3, 8):
        message = np.concatenate([np.zeros(shift, np.uint8), packet])
        np.testing.assert_array_equal(decoded(name, message[shift:], 777), wanted)


# --- Feedback: sent + left = sum of the gradients, over all ranks together. ---


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2)], ids=str)
@pytest.mark.parametrize("name", FEEDBACK)
def test_feedback_loses_nothing(name, shape):
    method = Pair("all-gather", name)
    numel, sent, total, states = 300, 0.0, 0.0, []
    for grads, states in steps(method, shape, 4, numel, 1):
        sent = sent + states[0]["result"].astype(np.float64)
        total = total + np.sum(grads, axis=0, dtype=np.float64)
    left = np.sum([state["lost"] for state in states], axis=0)
    if name in EXACT_FEEDBACK:
        np.testing.assert_array_equal(sent + left, total)
    # float32 sums of numbers below 64; few of them are rounded in each of 4 steps
    np.testing.assert_allclose(sent + left, total, atol=1e-3)


@pytest.mark.parametrize("collective", ["ring", "tree", "direct", "doubling", "halving-doubling"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 2), (1, 5)], ids=str)
def test_a_shared_random_choice_loses_nothing_on_any_way(collective, shape):
    method = Pair(collective, "randomk:0.2")
    sent, total, states = 0.0, 0.0, []
    for grads, states in steps(method, shape, 4, 90, 1):
        sent = sent + states[0]["result"].astype(np.float64)
        total = total + np.sum(grads, axis=0, dtype=np.float64)
    left = np.sum([state["lost"] for state in states], axis=0)
    np.testing.assert_array_equal(sent + left, total)


@pytest.mark.parametrize("name", FEEDBACK)
def test_a_broken_gradient_does_not_stay_in_the_feedback(name):
    method, shape = Pair("all-gather", name), (1, 3)
    for step, (_, states) in enumerate(steps(method, shape, 2, 200, 1)):
        if step == 0:
            kept = states[1]["lost"].copy()
            states[1]["gradient"][:] = np.nan
            run_method(method, spec(200), group(*shape), states)
            assert all(not np.isfinite(state["result"]).any() for state in states)
            np.testing.assert_array_equal(states[1]["lost"], kept)
    assert all(np.isfinite(state["result"]).all() for state in states)


KINDS = ("full", "alone", "skewed")


RUNS = [
    (name, kind)
    for i, name in enumerate(FEEDBACK)
    for kind in (KINDS if "/" not in name else [KINDS[i % 3]])  # compositions in turn
    if name != "randomk:0.01"
]


@pytest.mark.by_day(2)
@pytest.mark.parametrize(("name", "kind"), sampling.some(RUNS, 12))
def test_feedback_delivers_a_constant_gradient_in_the_long_run(name, kind):
    """The mean of what was delivered comes closer to the gradient with the number of steps."""
    grads = gradients(kind, 2, 64)
    states = [
        {"gradient": g.copy(), "rank": r, "ranks": 2, "seed": 0, "step": 0, "name": ""}
        for r, g in enumerate(grads)
    ]
    total, count = 0.0, 300
    for step in range(count):
        for state, gradient in zip(states, grads, strict=True):
            state["gradient"][:] = gradient
            state["step"] = step
        run_method(Pair("all-gather", name), spec(64), group(1, 2), states)
        total = total + states[0]["result"].astype(np.float64)
    # At most two gradients' worth of 100 steps, which a share of 1 % takes to send all, is kept.
    bound = (8 * 2 * 120) / count
    assert np.abs(total / count - np.sum(grads, axis=0)).max() <= bound


# --- Names. ---


@pytest.mark.parametrize("name", LOSSY)
def test_a_codec_is_found_by_its_own_name(name):
    assert CODECS[name].name == name
    assert CODECS[CODECS[name].name] is CODECS[name]
    assert name in CODECS


def test_a_family_stands_for_its_listed_member_and_numbers_are_written_one_way():
    assert CODECS["topk"] is CODECS["topk:0.01"]
    names = {
        "topk:0.010": "topk:0.01",
        "topk:1e-2:exact": "topk:0.01",
        "topk:1.0": "topk:1",
        "qsgd:04": "qsgd:4",
        "quant:4:2048:nearest": "quant:4:nearest",
        "dgc:0.001:0:0.9": "dgc:0.001",
        "topk/int32": "topk:0.01",
        "topk/fp16/int32": "topk:0.01/fp16",
    }
    assert {name: CODECS[name].name for name in names} == names
    assert Pair("all-gather", "topk:0.010").name == "all-gather+topk:0.01"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("topk:2", "codec 'topk:2': the share that is kept must be in (0, 1], got '2'"),
        ("topk:0", "must be in (0, 1], got '0'"),
        ("topk:", "must be in (0, 1], got ''"),
        ("topk:nan", "must be in (0, 1], got 'nan'"),
        ("topk:-0.1", "must be in (0, 1], got '-0.1'"),
        ("topk:1e999", "must be in (0, 1], got '1e999'"),
        ("topk:0.1:fast", "the way must be one of exact, sampled, bisect, reused; got 'fast'"),
        ("topk:0.1:exact:1", "at most 2 parameters, got 3"),
        ("threshold:1e39", "must be a number from 0 to 3e38, got '1e39'"),
        ("qsgd:1", "a whole number from 2 to 8, got '1'"),
        ("qsgd:²", "a whole number from 2 to 8"),
        ("quant:3", "must be one of 1, 2, 4, 8; got '3'"),
        (
            "quant:8:nearst",
            "if not 'nearest', must be one of 8, 16, 32, 64, 128, 256, 512, 1024, 2048",
        ),
        ("quant:8:nearest:64", "at most 2 parameters, got 3"),
        ("quant:8:64:nearest:nearest", "at most 3 parameters, got 4"),
        ("dgc:0.1:2:1", "the momentum must be in [0, 1), got '1'"),
        ("randomk:0.1:biased", "must be one of unbiased; got 'biased'"),
        ("terngrad:2", "no codec named 'terngrad:2'; known: "),
        ("qsgd:4/topk:0.1", "'qsgd:4' selects nothing; a composed codec is SELECTION"),
        ("randomk/qsgd", "'randomk' selects nothing"),
        ("topk/topk", "'topk' cannot code selected values"),
        ("topk/sign:vote", "'sign:vote' cannot code selected values"),
        ("topk/qsgd/fp16", "'fp16' is a second codec of the values"),
        ("topk/int32/fp16", "'fp16' comes after the index code"),
        ("topk/", "no codec named ''"),
    ],
)
def test_a_bad_name_is_refused_in_one_sentence(name, message):
    with pytest.raises(CommschedError, match=re.escape(message)):
        CODECS[name]
    assert name not in CODECS


def test_packets_that_cannot_be_added_go_with_an_all_gather_only():
    for name in LOSSY:
        if CODECS[name].addable:
            continue
        with pytest.raises(CommschedError, match="use 'all-gather' or 'all-gather-direct'"):
            Pair("ring", name).phases(spec(10), group(1, 2))
        for collective in ("all-gather", "all-gather-direct"):
            Pair(collective, name).phases(spec(10), group(1, 2))
