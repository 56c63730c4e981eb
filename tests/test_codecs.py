"""Every codec takes the same exam by being registered.

What the lossless formats promise one by one is in test_codec_formats.py, what lossy codecs promise
beyond the exam in test_codecs_lossy.py.
"""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from tests.support.gradients import SUPPORTS, gradient
from tests.support.packets import EXACT, decoded, encoded, expected_bytes, round_trip

NAMES = list(CODECS)
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}  # largest relative error of a normal number
NEAR = [name for name in NAMES if name in EXACT or name in ROUNDING]  # right on small numbers
ADDABLE = [name for name in NAMES if CODECS[name].addable]
LARGEST = {"fp16": 65504.0, "bf16": 3.3895e38}
DEVICE = Device(name="d", memory=1e9, bandwidth=1e9, flops=1e9)

values32 = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=60)


@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("name", EXACT)
@given(numel=st.integers(1, 300), seed=st.integers(0, 9))
def test_a_lossless_codec_gives_back_what_it_got(name, kind, numel, seed):
    values = gradient(kind, 0, numel, seed)
    np.testing.assert_array_equal(round_trip(name, values), values)


@pytest.mark.parametrize("name", EXACT)
@given(values=values32)
def test_a_lossless_codec_gives_back_any_numbers(name, values):
    values = np.array(values, np.float32)
    np.testing.assert_array_equal(round_trip(name, values), values)


@pytest.mark.parametrize("name", ROUNDING)
@given(values=values32)
def test_a_rounding_codec_errs_by_less_than_its_last_bit(name, values):
    values = np.clip(np.array(values, np.float32), -LARGEST[name], LARGEST[name])
    error = np.abs(round_trip(name, values).astype(np.float64) - values)
    smallest = 2.0**-25 if name == "fp16" else 2.0**-134  # half of the least subnormal
    assert (error <= ROUNDING[name] * np.abs(values.astype(np.float64)) + smallest).all()


@pytest.mark.parametrize("name", ADDABLE)
@given(values=values32)
def test_what_was_decoded_encodes_to_the_same_packet(name, values):
    packet = encoded(name, np.array(values, np.float32))
    again = encoded(name, decoded(name, packet, len(values)))
    np.testing.assert_array_equal(again, packet)


@pytest.mark.parametrize("name", ADDABLE)
@given(values=values32, cut=st.integers(0, 60))
def test_runs_that_were_coded_apart_are_coded_together_without_further_loss(name, values, cut):
    runs = np.split(np.array(values, np.float32), [min(cut, len(values))])
    joined = np.concatenate([round_trip(name, run) for run in runs])
    np.testing.assert_array_equal(round_trip(name, joined), joined)


@pytest.mark.parametrize("name", NAMES)
@given(numel=st.integers(0, 200), seed=st.integers(0, 9), density=st.sampled_from([0.0, 0.1, 1.0]))
def test_adding_a_packet_is_decoding_and_adding(name, numel, seed, density):
    rng = np.random.default_rng(seed)
    values = np.where(rng.random(numel) < density, rng.standard_normal(numel), 0)
    packet = encoded(name, values.astype(np.float32))
    total = rng.standard_normal(numel).astype(np.float32)
    want = total + decoded(name, packet, numel)
    CODECS[name].add(packet, total)
    np.testing.assert_array_equal(total, want)


@pytest.mark.parametrize("numel", [0, 1, 2, 1000])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_predicted_exactly_where_the_support_is_known(name, numel):
    full = np.arange(1, numel + 1, dtype=np.float32)
    if CODECS[name].lossless or CODECS[name].fixed:
        assert encoded(name, full).nbytes == expected_bytes(name, BucketSpec.uniform(numel))
    if CODECS[name].fixed:
        empty = np.zeros(numel, np.float32)
        assert encoded(name, empty).nbytes == expected_bytes(name, BucketSpec.uniform(numel, 0.5))
        assert CODECS[name].packet(numel).nbytes == encoded(name, full).nbytes


@pytest.mark.by_day(10)
@pytest.mark.parametrize(
    "law",
    [
        Sparsity(law="uniform", density=0.03),
        Sparsity(law="zipf", density=0.05, rows=400),
        Sparsity(law="curve", density=0.1, curve=((1, 0.1), (4, 0.3))),
    ],
    ids=lambda law: law.law,
)
@pytest.mark.parametrize("name", NAMES)
def test_bytes_are_predicted_in_expectation_for_random_supports(name, law):
    numel, draws = 8000, 200
    spec = BucketSpec(((law, numel, 0, numel),))
    rng = np.random.default_rng(1)
    sizes = []
    for _ in range(draws):
        values = np.zeros(numel, np.float32)
        values[law.support(numel, rng)] = 1.0
        sizes.append(encoded(name, values).nbytes)
    # Five standard errors: a right prediction fails once in 1.7 million seeds. 1e-4: what is too
    # rare to be seen in the draws, such as an empty block at a density of 0.1.
    slack = 5 * np.std(sizes, ddof=1) / np.sqrt(draws) + 1e-4 * np.mean(sizes)
    assert abs(np.mean(sizes) - expected_bytes(name, spec)) <= slack


@pytest.mark.parametrize("name", ADDABLE)
def test_bytes_of_a_sum_are_predicted_in_expectation(name):
    numel, draws, ranks = 4000, 200, 3
    law = Sparsity(law="uniform", density=0.1)
    rng = np.random.default_rng(2)
    sizes = []
    for _ in range(draws):
        total = np.zeros(numel, np.float32)
        for _ in range(ranks):
            total[law.support(numel, rng)] += 1.0
        sizes.append(encoded(name, total).nbytes)
    slack = 5 * np.std(sizes, ddof=1) / np.sqrt(draws) + 1e-4 * np.mean(sizes)
    spec = BucketSpec(((law, numel, 0, numel),))
    assert abs(np.mean(sizes) - expected_bytes(name, spec, merged=ranks)) <= slack


@pytest.mark.parametrize("name", NEAR)
def test_a_broken_gradient_is_seen_after_the_exchange(name):
    values = np.array([1.0, np.nan, np.inf, -np.inf, 0.0, 2.0], np.float32)
    got = round_trip(name, values)
    np.testing.assert_array_equal(got, values)
    CODECS[name].add(encoded(name, values), got)
    np.testing.assert_array_equal(got, 2 * values)


@pytest.mark.parametrize("name", NEAR)
def test_a_run_in_the_middle_of_a_bucket_is_coded_alone(name):
    bucket = np.arange(20, dtype=np.float32)
    got = np.zeros(20, np.float32)
    CODECS[name].decode(CODECS[name].encode(bucket[5:9], {}, 5).copy(), got[5:9])
    CODECS[name].add(CODECS[name].encode(bucket[7:12], {}, 7).copy(), got[7:12])
    want = [0] * 5 + [5, 6, 14, 16, 9, 10, 11] + [0] * 8
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(bucket, np.arange(20))


@pytest.mark.parametrize("name", NEAR)
def test_a_packet_is_read_wherever_it_lies_in_a_message(name):
    values = np.array([0, 3, 0, -4, 5], np.float32)
    packet = encoded(name, values)
    for shift in (1, 3, 8):
        message = np.concatenate([np.zeros(shift, np.uint8), packet])
        np.testing.assert_array_equal(decoded(name, message[shift:], 5), values)


@pytest.mark.parametrize("name", NAMES)
def test_a_measured_rate_replaces_the_memory_traffic(name):
    codec = CODECS[name]
    assert codec.rate(DEVICE).encode == codec.encode_traffic / 1e9
    measured = CodecRate(encode=1.0, add=2.0, decode=4.0)
    known = Device(name="d", memory=1e9, bandwidth=1e9, flops=1e9, codecs={name: measured})
    assert codec.rate(known) == measured


def test_an_unknown_codec_is_named_with_the_known_ones():
    known = f"no codec named 'fp17'; known: {', '.join(NAMES)}"
    with pytest.raises(CommschedError, match=re.escape(known)):
        CODECS["fp17"]
