"""What coding costs in an exchange: where it occurs, and at the density of the values."""

from dataclasses import replace

import numpy as np
import pytest

from commsched.cost.play import ExchangeRun, play, play_all
from commsched.exchange.registry import find_method
from commsched.machine.device import SAMPLED, SPARSE
from commsched.machine.model import CodecRate
from commsched.net.bucket import BucketSpec
from commsched.schedule.registry import COLLECTIVES
from tests.support.exchanges import DEVICE, FAST, carry, filled, played


def test_sparse_sums_grow_on_their_way():
    on, numel, density = filled(4, 1), 4000, 0.1
    got = played("ring", on, numel, "coo", density)
    after = [1 - (1 - density) ** merged for merged in (1, 2, 3, 4, 4, 4)]
    want = sum(16 + 8 * numel / 4 * share for share in after)
    np.testing.assert_allclose(got.sent, want, rtol=1e-12)


def test_coding_and_fixed_costs_are_counted_where_they_occur():
    """Two ranks, one element each way: encode, hop and add; then encode, hop and decode."""
    rate = CodecRate(encode=1e-6, add=2e-6, decode=3e-6, fixed=7e-3, fixed_add=5e-3)
    on = filled(1, 2, device=replace(DEVICE, codecs={"fp16": rate}))
    [end] = set(played("ring", on, 2, "fp16").end)
    hop = FAST.latency + 2 * FAST.overhead + 2 * FAST.per_byte
    assert end == pytest.approx(2 * hop + 3 * 7e-3 + 5e-3 + (4 + 4) * 1e-6 + 2 * 2e-6 + 4 * 3e-6)


def test_only_an_encode_outside_of_an_exchange_finds_cold_caches():
    rate = CodecRate(encode=8e-6, add=2e-6, decode=3e-6, fixed=8e-3, fixed_add=5e-3)
    cold = replace(rate, fixed_decode=7e-3, fixed_again=0.5, encode_again=0.25)
    warm = replace(rate, fixed_decode=7e-3, fixed=4e-3, encode=2e-6)
    spec, ends, encodes = BucketSpec.uniform(1000), [], []
    for each in (cold, warm):
        on = filled(1, 2, device=replace(DEVICE, codecs={"fp16": each}))
        ends.append(played("ring", on, 1000, "fp16").end.max())
        (phase,) = find_method("all-gather+fp16").phases(spec, on.everyone)
        encodes.append(phase.take_seconds(on.device))
        assert phase.give_seconds(on.device) == pytest.approx(7e-3 + 4000 * 3e-6 + 9e-3, abs=1e-3)
    assert ends[0] == ends[1]
    assert encodes == pytest.approx([8e-3 + 4000 * 8e-6, 4e-3 + 4000 * 2e-6], rel=1e-12)


@pytest.mark.parametrize(
    ("density", "encode", "decode"),
    [
        (0.001, 0.3, 0.5),
        (SPARSE, 0.3, 0.5),
        (SAMPLED, 1.0, 1.0),
        ((SAMPLED + 1) / 2, 1.5, 5.5),
        (1.0, 2.0, 10.0),
    ],
)
def test_coding_costs_what_was_measured_at_the_density_of_the_values(density, encode, decode):
    rate = CodecRate(
        encode=1e-9,
        add=1e-9,
        decode=1e-9,
        encode_sparse=0.3,
        encode_dense=2.0,
        decode_sparse=0.5,
        decode_dense=10.0,
    )
    found = rate.at(density)
    assert found.encode == pytest.approx(encode * 1e-9)
    assert found.decode == pytest.approx(decode * 1e-9)
    spec, group = BucketSpec.uniform(1000, density), filled(1, 2).everyone
    device = replace(DEVICE, codecs={"coo": rate})
    (phase,) = find_method("all-gather+coo").phases(spec, group)
    assert phase.take_seconds(device) == pytest.approx(4000 * encode * 1e-9)


@pytest.mark.parametrize("codec", ["coo", "bitmap"])
def test_exchanges_of_several_densities_side_by_side_take_what_each_takes_alone(codec):
    rate = CodecRate(encode=1e-9, add=2e-9, decode=3e-9, encode_sparse=0.3, decode_dense=9.0)
    on = filled(2, 2, device=replace(DEVICE, codecs={codec: rate}))
    schedule, start = COLLECTIVES["ring"](on.everyone), np.zeros(on.size)
    each = [
        ExchangeRun(carry(schedule, codec, BucketSpec.uniform(10_000, density)), on, start)
        for density in (0.001, 0.02, 0.02, 0.5)
    ]
    for one, found in zip(each, play_all(schedule, on.everyone, each), strict=True):
        alone = play(schedule, one.payload, on, on.everyone, start)
        np.testing.assert_array_equal(found.end, alone.end)


def test_packets_that_are_only_forwarded_are_not_coded():
    rate = CodecRate(encode=1.0, add=1.0, decode=1.0, fixed=1.0)
    on = filled(1, 4, device=replace(DEVICE, codecs={"fp16": rate}))
    assert played("all-gather", on, 1000, "fp16").end.max() < 1e-3
