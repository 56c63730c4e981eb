"""What a codec must write with kernels: NumPy's packets. A module that runs these offers `both`.

tests/support/cuda_kernels.py says what `both` is, and tests the kernels one by one.
"""

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.pair import encode_with_feedback
from tests.support.cuda_kernels import LEVELS, decoded, drawn, same
from tests.test_codecs_lossy import ODD


@pytest.mark.parametrize("numel", [9, 5000, 70_001])
@pytest.mark.parametrize("name", ["topk:0.01:sampled", "topk:0.05:sampled/quant:8", "topk:0.02"])
def test_a_selection_keeps_the_same_of_step_after_step(both, name, numel):
    def kept(put):
        state = {"seed": 3, "rank": 2, "name": "w", "gradient": put(drawn(numel, odd=False))}
        packets = []
        for step in range(3):
            state["step"] = step
            packets.append(encode_with_feedback(CODECS[name], state))
            state["gradient"][:] = put(drawn(numel + step, odd=step == 1)[:numel])
        return packets, state["lost"]

    with np.errstate(over="ignore", invalid="ignore"):
        same(both(kept))


def is_coded_alike(both, name, values):
    state = {"seed": 3, "step": 1, "rank": 2, "name": "w"}
    packets = both(lambda put: CODECS[name].encode(put(values), dict(state)))
    same(packets)
    out = np.ones(len(values), np.float32)
    same(both(lambda put: decoded(name, put(packets[0]), put(out))))


ADDED = [
    "dense",
    "fp16",
    "bf16",
    "fp8:e4m3",
    "fp8:e5m2:3",
    "quant:8",
    "quant:4",
    "quant:2",
    "quant:1",
    "adaqp:3",
    "qsgd:5",
]


@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("numel", [0, 1, 257, 2049, 70_001])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_packet_is_added_and_taken_off_as_what_it_decodes_to(both, name, numel, shift):
    """Decoded in the same pass, to the bits of two; numbers below 2^-126 are numbers."""
    codec = CODECS[name]
    values, sums = drawn(numel, odd=name != "qsgd:5"), drawn(numel + shift, odd=False) * 2.0**-130
    packet = codec.encode(values, {}).copy()

    def changed(put):
        added, taken = put(sums)[shift:], put(sums)[shift:]
        codec.add(put(packet), added)
        codec.subtract(put(packet), taken)
        return added, taken

    with np.errstate(over="ignore", invalid="ignore"):
        found = both(changed)
        same(found)
        plain = decoded(name, packet, np.empty(numel, np.float32))
        same((found[0][0], sums[shift:] + plain))
        same((found[0][1], sums[shift:] - plain))


@pytest.mark.parametrize("numel", [5, 8192, 20_001, 32_768])
@pytest.mark.parametrize("ways", [1, 3])
def test_packets_are_transformed_back_together(both, numel, ways):
    codec, values = CODECS["fft:0.15"], drawn(numel + 1, odd=False)
    packets = [codec.encode(values[:numel] * way, {}).copy() for way in range(1, ways + 1)]

    def changed(put):
        found = [put(values)[1:] for _ in range(3)]
        codec.combine([put(packet) for packet in packets], found[0])
        codec.add(put(packets[0]), found[1])
        codec.subtract(put(packets[0]), found[2])
        few = put(packets[-1])
        few[4:5] = few[4:5] ^ np.uint8(1)  # a bin more or less
        with pytest.raises(CommschedError, match=f"is no spectrum of {numel} values"):
            codec.combine([put(packets[0]), few], put(values)[1:])
        return found

    for first, second in zip(*both(changed), strict=True):
        assert np.linalg.norm(first - second) <= LEVELS * np.linalg.norm(first)


@pytest.mark.parametrize(
    "name",
    [
        "quant:8",
        "quant:4",
        "quant:2:nearest",
        "quant:1",
        "quant:1:64",
        "adaqp:5",
        "qsgd:5",
        "terngrad",
    ],
)
@pytest.mark.parametrize("numel", [0, 1, 9, 511, 513, 2047, 2049, 70_001])
def test_quantisers_write_the_same_packets(both, name, numel):
    is_coded_alike(both, name, drawn(numel, odd=numel == 70_001))


@pytest.mark.parametrize(
    "name", ["quant:8", "quant:4:nearest", "quant:1", "adaqp:4", "qsgd:8", "terngrad"]
)
@pytest.mark.parametrize("kind", [*ODD, "wide", "signed zeros"])
def test_quantisers_agree_on_odd_gradients(both, name, kind):
    rng = np.random.default_rng(5)
    wide = np.tile(rng.uniform(-1, 1, 2048).astype(np.float32), 3)
    wide[:2048] *= np.float32(3.4e38)  # beside blocks that are not wide
    zeros = rng.choice(np.array([0.0, -0.0], np.float32), 40_000)
    is_coded_alike(both, name, {**ODD, "wide": wide, "signed zeros": zeros}[kind])


@pytest.mark.parametrize("name", ["bitmap", "coo", "elias", "topk:0.01:sampled", "topk:0.02"])
def test_selections_write_the_same_packets(both, name):
    values = drawn(70_001, odd=False)
    if CODECS[name].lossless:
        values[abs(values) < 2] = 0
    is_coded_alike(both, name, values)
