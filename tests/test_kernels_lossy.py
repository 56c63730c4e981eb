"""Kernels of lossy codecs: small floats, packed bits, counted random numbers, selection."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.kernels import bits, eightbit, half, rangefloat, select
from commsched.kernels.finite_check import finite
from commsched.kernels.random import Dither, hashes, key_of, keys, run_key
from tests.test_codecs import round_trip


def normal(numel: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


# --- The range-based float. Source of the values: Wang et al., HPDC 2020. ---


def test_the_published_unit_vector_of_the_range_float():
    form = rangefloat.from_least(bits=8, mantissa=3, least=0.125)
    code = form.encode(np.array([0.256], np.float32))
    assert f"{int(code[0]):08b}" == "00001001"
    assert form.decode(code).tolist() == [0.25]


def test_the_published_least_number_of_an_8_bit_range_up_to_1():
    form = rangefloat.up_to(bits=8, mantissa=3, largest=1.0)
    assert form.least == pytest.approx(1.9e-5, rel=0.01)
    assert form.encode(np.float32([1.0, 2.0, np.float32(form.least)])).tolist() == [127, 127, 1]


@given(
    width=st.integers(4, 16),
    mantissa=st.integers(1, 6),
    values=st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=30),
)
def test_the_range_float_rounds_to_nearest_clamps_and_keeps_signs(width, mantissa, values):
    form = rangefloat.up_to(width, mantissa, 1.0)
    if form.base < 1:
        return  # the range is wider than that of float32
    every = np.arange(1 << width, dtype=np.uint16)
    numbers = form.decode(every)
    assert np.isnan(numbers[1 << (width - 1)])
    known = np.delete(every, 1 << (width - 1))
    np.testing.assert_array_equal(form.encode(form.decode(known)), known)
    values = np.array(values, np.float32)
    got = form.decode(form.encode(values))
    nearest = np.nanmin(np.abs(numbers[None, :] - np.clip(values, -1, 1)[:, None]), axis=1)
    inside = np.abs(values) >= form.least
    error = np.abs(got - np.clip(values, -1, 1))
    np.testing.assert_array_equal(error[inside], nearest[inside])
    assert (error[~inside] <= form.least).all()
    assert (got * values >= 0).all()
    assert np.isnan(form.decode(form.encode(np.float32([np.nan])))).all()


def test_the_range_float_of_zero_is_zero():
    form = rangefloat.up_to(10, 5, 1.0)
    assert form.encode(np.float32([0.0, -0.0, 1e-9, -1e-9])).tolist() == [0, 0, 0, 0]


# --- 8-bit floats. ---


@pytest.mark.parametrize(
    ("form", "codes"),
    [
        (eightbit.E4M3, {0x01: 2.0**-9, 0x08: 2.0**-6, 0x38: 1.0, 0x7E: 448.0, 0xB8: -1.0}),
        (eightbit.E5M2, {0x01: 2.0**-16, 0x04: 2.0**-14, 0x3C: 1.0, 0x7B: 57344.0}),
    ],
)
def test_8_bit_floats_stand_for_the_specified_numbers(form, codes):
    table = eightbit.table(form)
    assert {code: table[code] for code in codes} == codes
    assert np.isnan(table[[0x7F, 0xFF]]).all()


@pytest.mark.parametrize("form", [eightbit.E4M3, eightbit.E5M2], ids=["e4m3", "e5m2"])
@given(
    values=st.lists(
        st.one_of(
            st.floats(-600, 600, width=32),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
    )
)
def test_8_bit_floats_round_to_the_nearest_and_saturate(form, values):
    values = np.array(values, np.float32)
    table = eightbit.table(form)
    got = table[eightbit.narrow(values, form)]
    clipped = np.clip(values, -form.largest, form.largest)
    nearest = np.nanmin(np.abs(table[None, :] - clipped[:, None]), axis=1)
    np.testing.assert_array_equal(np.abs(got - clipped), nearest)


def test_a_power_of_two_lifts_small_gradients_into_the_range():
    values = normal(1000) * np.float32(1e-5)
    assert not round_trip("fp8:e4m3", values).any()
    error = np.abs(round_trip("fp8:e4m3:20", values) - values)
    assert (error <= 2.0**-4 * np.abs(values) + 2.0**-30).all()


@given(
    values=st.lists(
        st.one_of(
            st.floats(width=16),
            st.floats(width=32),
            st.floats(-(2.0**-13), 2.0**-13, width=32),
            st.just(65519.9),
        )
    )
)
def test_halves_are_rounded_as_numpy_rounds_them_but_for_saturation(values):
    values = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float16)
    big = np.isinf(wanted) & np.isfinite(values)
    wanted[big] = np.copysign(np.float16(65504), values[big])
    got = half.to_fp16(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(got[number], wanted.view(np.uint16)[number])
    assert np.isnan(half.from_fp16(got)[~number]).all()


# --- Bits, random numbers, selection. ---


@given(width=st.integers(0, 32), count=st.integers(0, 300), seed=st.integers(0, 9))
def test_what_is_packed_is_unpacked(width, count, seed):
    codes = np.random.default_rng(seed).integers(0, 2**width, count, np.uint32)
    packed = bits.pack(codes, width)
    assert packed.dtype == np.uint8
    assert len(packed) == bits.packed_bytes(count, width)
    assert 0 <= len(packed) - count * width / 8 < 7  # less than a byte for each single bit
    np.testing.assert_array_equal(bits.unpack(packed, count, width), codes)


@given(key=st.integers(0, 2**64 - 1), sizes=st.lists(st.integers(1, 100), min_size=1, max_size=4))
def test_dither_is_two_halves_of_counted_hashes(key, sizes):
    dither, done = Dither(key, max(sizes), np.zeros(1)), 0
    for size in sizes:
        got = dither.next(np.empty(size, np.int32))
        half = (size + 1) // 2
        words = hashes(key, np.arange(done, done + half))
        np.testing.assert_array_equal(got[:half], words & 0xFFFF)
        np.testing.assert_array_equal(got[half:], words[: size - half] >> 16)
        done += half


@given(st.integers(0, 2**63), st.integers(0, 2**40), st.integers(-1, 2**20), st.text(max_size=9))
def test_the_key_of_a_rank_is_the_one_among_many(seed, step, rank, name):
    assert key_of(seed, step, rank, name) == keys(seed, step, np.array([rank]), name)[0]


def test_dither_is_even_and_uncorrelated():
    count = 1 << 18
    draws = [
        Dither(run_key({"step": step, "name": "w"}, 0), count, np.zeros(1)).next(
            np.empty(count, np.int32)
        )
        for step in (0, 1)
    ]
    unit = [(d + 0.5) / 65536 - 0.5 for d in draws]
    error = 5 / np.sqrt(count)  # five standard errors in units of the deviation
    for u in unit:
        assert abs(u.mean()) <= error * np.sqrt(1 / 12)
        filled = np.bincount(((u + 0.5) * 64).astype(int), minlength=64)
        assert np.abs(filled - count / 64).max() <= 6 * np.sqrt(count / 64)
        for lag in (1, 2, 512):
            assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) <= error
    assert abs(np.corrcoef(*unit)[0, 1]) <= error


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 1e-45, 3e38]), max_size=50),
    count=st.integers(0, 50),
)
def test_the_largest_are_the_first_of_a_stable_sort(values, count):
    values = np.array(values, np.float32)
    order = np.argsort(-np.abs(values), kind="stable")[:count]
    wanted = np.sort(order[values[order] != 0])
    np.testing.assert_array_equal(select.largest(values, count), wanted)


@pytest.mark.parametrize("kind", ["normal", "sorted", "equal", "sparse"])
def test_of_many_the_likely_ones_are_ranked_as_all_are(kind):
    values = normal(select.MANY)
    if kind == "sorted":
        values.sort()
    if kind == "equal":
        values = np.rint(values)
    if kind == "sparse":
        values[normal(select.MANY, seed=1) > -1] = 0
    for count in (1, 500, len(values) // 8, len(values) // 3, len(values) // 2):
        wanted = np.sort(np.argsort(-np.abs(values), kind="stable")[:count])
        wanted = wanted[values[wanted] != 0]
        np.testing.assert_array_equal(select.largest(values, count), wanted)
        assert select.threshold_of(values, count) == np.sort(abs(values))[-count]


@given(numel=st.integers(1, 500), share=st.floats(0.01, 1), seed=st.integers(0, 9))
def test_bisection_finds_the_largest_where_magnitudes_differ(numel, share, seed):
    values, count = normal(numel, seed), int(np.ceil(share * numel))
    got = np.abs(values[select.bisected(values, count, 30)])
    assert len(got) == count
    # The interval is halved 30 times: what lies in it is equal but for the last bits.
    least = np.sort(np.abs(values))[-count]
    assert (got >= least * (1 - 1e-6)).all()


def test_a_sampled_threshold_selects_about_the_share():
    values, share = normal(1 << 20), 0.01
    for key in range(5):
        threshold = select.sampled_threshold(values, share, key)
        found = len(select.above(values, threshold))
        # Five deviations of a quantile of 32,768 samples.
        assert abs(found / len(values) / share - 1) <= 5 / np.sqrt(select.SAMPLE * share)


@given(place=st.integers(0, 999), broken=st.sampled_from([np.nan, np.inf, -np.inf]))
def test_one_number_that_is_not_finite_is_found(place, broken):
    values = normal(1000)
    assert finite(values)
    values[place] = broken
    assert not finite(values)
    assert finite(np.full(1000, 3e38, np.float32))  # whose sum overflows
