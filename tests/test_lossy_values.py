"""What single lossy codecs promise: published values, closed forms, references."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.codecs.bloom import filter_bits
from commsched.codecs.dgc import WARM_UP
from commsched.coding.index import INDEX_CODES
from commsched.coding.registry import CODECS
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.lockstep import fresh_states, run_method
from commsched.exchange.pair import Pair
from commsched.kernels.select import largest
from commsched.kernels.spectrum import fast_length
from commsched.machine.model import CodecRate, Device, Link, Machine
from commsched.net.bucket import BucketSpec
from tests.support.gradients import group, rounded, spec
from tests.test_codecs import decoded, encoded, round_trip


def normal(numel: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(numel).astype(np.float32)


# --- FFT against top-k: it depends on the signal. ---


def autoregressive(numel: int, factor: float) -> np.ndarray:
    noise = np.random.default_rng(1).standard_normal(numel)
    for i in range(1, numel):
        noise[i] += factor * noise[i - 1]
    return noise.astype(np.float32)


@pytest.mark.parametrize(
    ("factor", "spectral", "largest"), [(0.9, 0.324, 0.665), (0.0, 0.752, 0.664)]
)
def test_a_spectrum_beats_top_k_for_correlated_gradients_only(factor, spectral, largest):
    values = autoregressive(1 << 17, factor)
    size = np.linalg.norm(values)
    errors = {
        name: np.linalg.norm(round_trip(name, values) - values) / size
        for name in ("fft:0.15", "topk:0.15")
    }
    # 131,072 draws, correlated over some ten: the third digit is the sample's.
    assert errors["fft:0.15"] == pytest.approx(spectral, abs=0.005)
    assert errors["topk:0.15"] == pytest.approx(largest, abs=0.01)


def test_spectra_are_summed_and_transformed_back_once():
    packets = [encoded("fft:0.3", normal(1000, seed)) for seed in range(3)]
    one_by_one = sum(decoded("fft:0.3", packet, 1000) for packet in packets)
    total = np.empty(1000, np.float32)
    CODECS["fft:0.3"].combine(packets, total)
    np.testing.assert_allclose(total, one_by_one, atol=1e-5)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.8])
def test_what_a_spectrum_leaves_out_is_the_energy_of_its_dropped_bins(share):
    """Parseval's theorem; bins beside the first and the last stand for two."""
    numel = 2000  # a length that is fast: no zeros are added
    values = normal(numel)
    energy = np.abs(np.fft.rfft(values.astype(np.float64))) ** 2 / numel
    energy[1:-1] *= 2
    assert energy.sum() == pytest.approx(np.square(values, dtype=np.float64).sum())
    dropped = np.sort(energy)[: len(energy) - int(np.ceil(share * len(energy)))].sum()
    left = np.square(round_trip(f"fft:{share}", values) - values, dtype=np.float64).sum()
    rounding = (2.0**-6) ** 2 * (energy.sum() - dropped)  # at most: 5 bits of mantissa, to nearest
    assert dropped * (1 - 1e-3) <= left <= dropped + rounding + 1e-3 * dropped


def test_a_fast_length_is_the_next_product_of_two_three_and_five():
    products = {2**a * 3**b * 5**c for a in range(12) for b in range(8) for c in range(6)}
    for numel in [0, 1, 7, 11, 97, 1009, 2047, 2048, 2049]:
        assert fast_length(numel) == min(p for p in products if p >= max(numel, 1))


def test_all_bins_give_back_the_gradient_to_ten_bits():
    values = normal(999)
    error = np.linalg.norm(round_trip("fft:1", values) - values) / np.linalg.norm(values)
    assert error < 2.0**-6  # 5 bits of mantissa, to nearest


# --- Crossover 6: compression pays iff ratio > 1 / (1 - 2 T sum 1/T_i). ---


@pytest.mark.parametrize(("gigabits", "least"), [(10, 1.21), (32, 2.23), (57.9, np.inf)])
def test_compression_pays_from_the_published_ratio_on(gigabits, least):
    """4/600 + 1/71 + 1/67 + 1/30 s per GB to encode, and as much to decode, on 2 ranks."""
    rate = gigabits * 1e9 / 8
    work = (4 / 600 + 1 / 71 + 1 / 67 + 1 / 30) / 1e9
    numel = 10**9

    def seconds(codec: str) -> float:
        name = CODECS[codec].name
        coding = CodecRate(encode=work, add=0.0, decode=work)
        codecs = {name: coding, "dense": CodecRate(encode=0.0, add=0.0, decode=0.0)}
        link = Link(latency=0.0, overhead=0.0, per_byte=1 / rate)
        device = Device(name="d", memory=1e12, bandwidth=1e30, flops=1e13, codecs=codecs)
        on = Machine(
            name="m", node_of_rank=(0, 1), inside=link, between=link, nic=None, device=device
        )
        method = Pair("all-gather", codec)
        return price(method, BucketSpec.uniform(numel), on, on.everyone).seconds

    plain = seconds("dense")
    if np.isinf(least):
        assert seconds("topk:1e-6") == pytest.approx(plain, rel=2e-3)
        return
    for ratio, pays in ((least * 1.01, True), (least * 0.99, False)):
        assert (seconds(f"topk:{1 / (2 * ratio):.6f}") < plain) is pays


# --- The Bloom filter. ---


def test_a_bloom_filter_takes_the_published_bits_per_index():
    assert filter_bits(1, 1e-3) == pytest.approx(14.4, abs=0.05)
    part, _ = INDEX_CODES["bloom:0.001"].encode(np.arange(0, 10**6, 1000), 10**6, 7)
    assert 8 * len(part) / 1000 == pytest.approx(14.4, abs=0.35)  # its header takes 0.26


@pytest.mark.parametrize("rate", [0.1, 0.01, 0.001])
def test_a_bloom_filter_finds_all_and_few_others(rate):
    code, numel = INDEX_CODES[f"bloom:{rate}"], 10**6
    index = np.sort(np.random.default_rng(3).choice(numel, 2000, replace=False))
    part, sent = code.encode(index, numel, 7)
    assert np.isin(index, sent).all()
    np.testing.assert_array_equal(code.decode(part, numel), sent)
    expected = code.sent(np.array([2000.0]), np.array([1.0 * numel]))[0] - 2000
    # Six deviations: nearly Poisson, beside the filling of the filter itself, which varies by 1 %.
    assert abs(len(sent) - 2000 - expected) <= 6 * np.sqrt(expected) + 0.1 * expected
    assert expected == pytest.approx(rate * numel, rel=0.1)


def test_the_policies_send_as_many_as_were_selected_and_p2_errs_less():
    numel, index = 10**5, np.sort(np.random.default_rng(4).choice(10**5, 500, replace=False))
    right = {}
    for policy in ("p1", "p2"):
        part, sent = INDEX_CODES[f"bloom:0.01:{policy}"].encode(index, numel, 7)
        assert len(sent) == 500
        assert (np.diff(sent) > 0).all()
        np.testing.assert_array_equal(INDEX_CODES[f"bloom:0.01:{policy}"].decode(part, numel), sent)
        right[policy] = np.isin(sent, index).sum()
    assert right["p2"] > right["p1"]


# --- One by one. ---


def test_the_majority_decides_and_a_tie_is_zero():
    grads = [np.float32([1, -2, 3, -1]), np.float32([1, -2, -3, 1]), np.float32([-1, -2, 3, -5])]
    for count, signs in ((3, [1, -1, 1, -1]), (2, [1, -1, 0, 0])):
        states = fresh_states([g.copy() for g in grads[:count]])
        run_method(Pair("all-gather", "sign:vote"), spec(4), group(1, count), states)
        scale = sum(np.abs(g).mean() for g in grads[:count])
        for state in states:
            np.testing.assert_allclose(state["result"], scale * np.array(signs), rtol=1e-6)


def test_one_bit_decodes_to_the_means_of_either_sign():
    got = round_trip("onebit", np.float32([1, 3, -2, -6, 0]))
    np.testing.assert_allclose(got, [4 / 3, 4 / 3, -4, -4, 4 / 3], rtol=1e-6)


def test_random_places_are_the_same_on_all_ranks_and_other_in_every_step():
    codec = CODECS["randomk:0.1"]

    def places(**changes):
        state = {"seed": 1, "step": 0, "name": "b", "rank": 0} | changes
        return np.flatnonzero(
            decoded(codec.name, codec.encode(np.ones(500, np.float32), state), 500)
        )

    np.testing.assert_array_equal(places(), places(rank=5))
    assert not np.array_equal(places(), places(step=1))
    assert len(places()) == 50


def test_a_threshold_is_reused_for_32_steps():
    codec, state, used = CODECS["topk:0.1:reused"], {}, []
    for step in range(65):
        state["step"] = step
        codec.encode(normal(1000, step), state)
        used.append(state["topk threshold 0"][1])
    assert len(set(used[:32])) == len(set(used[32:64])) == 1
    assert len(set(used)) == 3


@pytest.mark.parametrize("times", [1 / 8, 8.0])
def test_a_threshold_that_is_far_off_is_replaced_at_once(times):
    codec, state, values = CODECS["topk:0.1:reused"], {"step": 0}, normal(1000)
    codec.encode(values, state)
    for step in (1, 2):
        state["step"] = step
        index, _ = codec.open(codec.encode(np.float32(times) * values, state), len(values))
        np.testing.assert_array_equal(index, largest(values, 100))
        assert state["topk threshold 0"][1] == times * abs(values[index]).min()


def test_dgc_sends_less_from_stage_to_stage():
    codec = CODECS["dgc:0.001:10"]
    shares = [codec.share(step) for step in (0, 9, 10, 20, 30, 39, 40, 10**6)]
    assert shares == [WARM_UP[0], *WARM_UP[:4], WARM_UP[3], 0.001, 0.001]
    assert [1 - share for share in WARM_UP] == pytest.approx([0.75, 0.9375, 0.984, 0.996])


def test_dgc_without_momentum_loses_nothing():
    codec, state = CODECS["dgc:0.1:2:0"], {}
    sent = total = np.zeros(300, np.float32)
    for step in range(6):
        values = np.rint(4 * normal(300, step)).astype(np.float32)
        state["step"] = step
        sent = sent + decoded(codec.name, codec.encode(values, state), 300)
        total = total + values
    _, velocity = state["dgc 0"]
    np.testing.assert_array_equal(sent + velocity, total)


def test_dgc_begins_anew_after_sums_that_overflow():
    codec, state, found = CODECS["dgc:0.1:0"], {"step": 0}, []
    for step in range(4):
        values = np.full(100, 3e38 if step < 2 else 1.0, np.float32)
        found.append(decoded(codec.name, codec.encode(values, state), 100))
    assert np.isnan(found[1]).any()
    assert [np.isfinite(each).all() for each in found] == [True, False, True, True]
    assert np.count_nonzero(found[3]) == 10


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
@pytest.mark.parametrize("count", [1, 8, 131, 600])
def test_packets_of_odd_widths_have_the_bytes_that_are_promised(bits, count):
    codec = CODECS[f"qsgd:{bits}"]
    packet = codec.encode(normal(count, bits), {"seed": 0, "step": 0, "rank": 0, "name": "b"})
    promised = codec.nbytes(BucketSpec.uniform(count), np.array([0]), np.array([count]), 1)
    assert promised.tolist() == [packet.nbytes]


def test_dgc_corrects_momentum_until_an_element_is_sent():
    codec, state = CODECS["dgc:0.5:0:0.5"], {}
    got = []
    for step in range(3):
        values = np.float32([8, 1])  # the first is sent in every step
        got.append(decoded(codec.name, codec.encode(values, state), 2))
        state["step"] = step
    assert [row[0] for row in got] == [8, 8, 8]  # its momentum is cleared when it is sent
    momentum, velocity = state["dgc 0"]
    np.testing.assert_allclose([momentum[1], velocity[1]], [1.75, 1 + 1.5 + 1.75])


def test_fitted_values_follow_a_smooth_distribution():
    values = normal(20000)
    values = values[np.abs(values) > 1]
    for name, bound in (("fit:poly", 0.01), ("fit:exp", 0.1)):
        error = np.linalg.norm(round_trip(name, values) - values) / np.linalg.norm(values)
        assert error < bound


def test_a_sum_of_two_exponentials_is_fitted_exactly():
    x = np.linspace(0, 1, 4000)
    values = (0.3 * np.exp(0.5 * x) + 0.02 * np.exp(6 * x)).astype(np.float32)
    # The running integrals are trapezes over 4000 values.
    np.testing.assert_allclose(round_trip("fit:exp", values), values, rtol=1e-3)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_block_quantisation_errs_by_less_than_a_step_of_its_block(width):
    values = normal(9000) * np.repeat(np.float32([1, 100]), 4500)
    for rounding, steps in (("", 1.0), (":nearest", 0.5)):
        error = np.abs(round_trip(f"quant:{width}{rounding}", values) - values)
        for first in range(0, 9000, 2048):
            block = values[first : first + 2048]
            # float32 holds a place among 255 steps to 2**-16 of a step.
            least = np.ptp(block) / (2**width - 1) * (steps + 1e-4)
            assert (error[first : first + 2048] <= least).all()


def test_equal_seeds_leave_equal_bits_with_every_listed_codec():
    for name in CODECS:
        if CODECS[name].lossless:
            continue
        results = []
        for _ in range(2):
            states = fresh_states([g.copy() for g in rounded(3, 700)], 9, "b0")
            run_method(Pair("all-gather", name), spec(700), group(1, 3), states)
            results.append(states[1]["result"].tobytes())
        assert results[0] == results[1]


def test_a_composed_codec_is_no_longer_than_its_parts_say():
    values = normal(100_000)
    plain, coded = (len(encoded(f"topk:0.01{more}", values)) for more in ("", "/qsgd:4"))
    assert plain == 24 + 8 * 1000
    assert coded == 24 + 4 * 1000 + 500 + 4 * 2  # two blocks of values with a scale each


def test_a_composed_codec_takes_what_its_parts_take():
    measured = {
        "topk:0.01": CodecRate(encode=1e-9, add=2e-9, decode=3e-9, fixed=5e-6),
        "qsgd:4": CodecRate(encode=1e-8, add=1e-8, decode=2e-8),
    }
    device = Device(name="d", memory=1e9, bandwidth=1e10, flops=1e9, codecs=measured)
    plain, bloom = CODECS["topk:0.01"].rate(device), INDEX_CODES["bloom:0.001"]
    coded = CODECS["topk:0.01/qsgd:4"].rate(device)
    assert coded.encode == pytest.approx(1e-9 + 0.01 * 1e-8, rel=1e-3)
    assert coded.decode == pytest.approx(3e-9 + 0.01 * 2e-8, rel=1e-3)
    # Of 100 values a packet has an index of 4 B and half a byte: 4.5 of 400 B.
    assert coded.add == pytest.approx(2e-9 + 0.01 * 2e-8 * 400 / 4.5, rel=0.02)
    filtered = CODECS["topk:0.01/bloom:0.001"].rate(device)
    tested = bloom.decode_traffic / 1e10  # s/B of the run: every element is
    assert filtered.encode == pytest.approx(plain.encode + bloom.encode_traffic / 1e10)
    assert filtered.decode == pytest.approx(plain.decode + tested)
    assert filtered.add > plain.add + 40 * tested
    assert filtered.fixed == plain.fixed
    known = replace(device, codecs=measured | {"topk:0.01/bloom:0.001": plain})
    assert CODECS["topk:0.01/bloom:0.001"].rate(known) == plain


def test_a_truncated_composed_packet_is_refused():
    packet = encoded("topk:0.1/qsgd:4/bloom:0.01", normal(500))
    for torn in (packet[:-1], packet[:30], packet[:0], np.concatenate([packet, packet[:1]])):
        with pytest.raises(CommschedError, match="selection coded"):
            decoded("topk:0.1/qsgd:4/bloom:0.01", torn.copy(), 500)
