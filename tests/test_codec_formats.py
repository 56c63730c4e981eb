"""What each lossless format promises: golden packets, refusals, bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.coding.coordinates import TAG
from commsched.coding.packet import HEADER
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.net.bucket import BucketSpec
from commsched.net.sparsity import Sparsity
from tests.support.packets import EXACT, encoded, round_trip

# --- Each format alone. ---


def test_fp16_ends_at_its_largest_number():
    values = np.array([1e6, -1e38, 65504, 65519, 65521], np.float32)
    np.testing.assert_array_equal(round_trip("fp16", values), [65504, -65504, 65504, 65504, 65504])


def test_bf16_rounds_to_nearest_even():
    values = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001], np.uint32)
    words = encoded("bf16", values.view(np.float32)).view(np.uint16)
    assert words.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81]


def test_the_dense_packet_is_the_bucket_itself():
    values = np.ones(4, np.float32)
    assert np.shares_memory(CODECS["dense"].encode(values, {}), values)


def test_a_golden_coordinate_list():
    packet = encoded("coo", np.array([0, 1.5, 0, 0, -2], np.float32))
    assert packet.tobytes().hex(" ", 4) == (
        "434f4f00 00000000 02000000 00000000 01000000 04000000 0000c03f 000000c0"
    )


@pytest.mark.parametrize(
    ("name", "packet"),
    [
        ("bitmap", "424d4150 00000000 02000000 00000000 12 0000c03f 000000c0"),
        # 5 elements are one block, and shorter than a whole one: its bit, its values
        (
            "block",
            "424c434b 00000000 01000000 00000000 01 00000000 0000c03f 00000000 00000000 000000c0",
        ),
        # one byte per bitmap, no low bits: 5 / 2 is below 4
        ("elias", "454c4941 53000000 02000000 00000000 0000c03f 000000c0 12"),
    ],
)
def test_golden_packets(name, packet):
    values = np.array([0, 1.5, 0, 0, -2], np.float32)
    assert encoded(name, values).tobytes() == bytes.fromhex(packet)


def test_a_golden_elias_fano_list():
    values = np.zeros(100, np.float32)
    values[[3, 40, 99]] = 1.0
    # 100 / 3: 5 low bits of 3, 8 and 3 as planes; high parts 0, 1 and 3 as bits 0, 2 and 5
    planes, high, ones = "05050002 00", "25", "0000803f" * 3
    want = f"454c4941 53000000 03000000 00000000 {ones} {planes} {high}"
    assert encoded("elias", values).tobytes().hex() == bytes.fromhex(want).hex()


def coo(index: list[int], tag: int = TAG, count: int | None = None) -> np.ndarray:
    head = np.array([tag, len(index) if count is None else count], np.int64)
    ones = np.ones(len(index), np.float32)
    parts = (head, np.array(index, np.int32), ones)
    return np.concatenate([part.view(np.uint8) for part in parts])


@pytest.mark.parametrize(
    "packet",
    [
        np.zeros(0, np.uint8),
        np.zeros(HEADER - 1, np.uint8),
        np.zeros(HEADER, np.uint8),
        coo([1, 2], tag=TAG + 1),
        coo([1, 2], count=1),
        coo([1, 2], count=3),
        coo([], count=-1),
        coo([], count=2**61),
        coo([], count=-(2**61)),
        coo([0, 1])[:-1],
        coo([-1, 3]),
        coo([3, 10]),
        coo([2, 2]),
        coo([4, 3]),
        coo([0, 99, 5]),
        coo([0, -99, 5]),
    ],
    ids=lambda packet: f"{len(packet)}-bytes",
)
@pytest.mark.parametrize("reader", ["decode", "add"])
def test_a_malformed_coordinate_list_is_refused(reader, packet):
    with pytest.raises(CommschedError, match="coordinate list"):
        getattr(CODECS["coo"], reader)(packet, np.zeros(10, np.float32))


@given(content=st.binary(max_size=64), known=st.booleans())
def test_random_bytes_are_no_coordinate_list_or_a_right_one(content, known):
    packet = np.frombuffer(content, np.uint8).copy()
    if known and len(packet) >= HEADER:
        packet[:HEADER].view(np.int64)[:] = (TAG, (len(packet) - HEADER) // 8)
    out = np.full(10, 7.0, np.float32)
    try:
        CODECS["coo"].decode(packet, out)
    except CommschedError:
        assert (out == 7.0).all()
    else:
        assert np.count_nonzero(out) <= (len(packet) - HEADER) // 8


# --- Formats that describe themselves, all alike. ---

HEADED = [name for name in EXACT if not CODECS[name].fixed]
supports = st.tuples(st.integers(1, 2000), st.sampled_from([0.0, 0.001, 0.05, 0.4, 0.98, 1.0]))


def sparse_values(numel: int, density: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, numel])
    return np.where(rng.random(numel) < density, 1 + rng.random(numel), 0).astype(np.float32)


@pytest.mark.parametrize("name", HEADED)
@given(support=supports, seed=st.integers(0, 9))
def test_a_lossless_packet_keeps_any_support_of_blocks_and_gaps(name, support, seed):
    values = sparse_values(*support, seed)
    np.testing.assert_array_equal(round_trip(name, values), values)
    total = np.ones(len(values), np.float32)
    CODECS[name].add(encoded(name, values), total)
    np.testing.assert_array_equal(total, values + 1)


@pytest.mark.parametrize("reader", ["decode", "add"])
@pytest.mark.parametrize("name", HEADED)
@given(support=supports)
def test_a_packet_of_another_length_format_or_run_is_refused(name, reader, support):
    values = sparse_values(*support)
    packet = encoded(name, values)
    head = packet[:HEADER].view(np.int64)
    spoilt = [packet[:-1], packet[: HEADER - 1], np.append(packet, packet[:1])]
    for change in ((1, 0), (0, -1 - len(values)), (0, 2**62), (0, len(values) + 1)):
        other = packet.copy()
        other[:HEADER].view(np.int64)[:] = head + change
        spoilt.append(other)
    for wrong in spoilt:
        out = np.full(len(values), 7.0, np.float32)
        with pytest.raises(CommschedError, match=r"a packet of \d+ B is not a"):
            getattr(CODECS[name], reader)(wrong, out)
        assert (out == 7.0).all()


@pytest.mark.parametrize("name", HEADED)
@given(support=supports, at=st.integers(0, 10**6), bit=st.integers(0, 7), less=st.integers(0, 9))
def test_a_spoilt_packet_is_refused_with_a_sentence_or_read_within_its_run(
    name, support, at, bit, less
):
    values = sparse_values(*support)
    packet = encoded(name, values)
    packet[at % len(packet)] ^= np.uint8(1 << bit)
    out = np.full(max(0, len(values) - less), 7.0, np.float32)
    try:
        CODECS[name].decode(packet, out)
    except CommschedError as error:
        said = str(error)
        assert (out == 7.0).all()
    else:
        said = "a packet of it is read"
    assert said.startswith(("a packet of", "a coordinate list"))


# --- Bytes of each format. ---


def one_in(gap: int, numel: int) -> np.ndarray:
    values = np.zeros(numel, np.float32)
    values[::gap] = 1.0
    return values


def test_a_bitmap_is_smaller_than_a_list_above_1_in_32():
    for gap in (31, 33):
        bitmap, coo = (len(encoded(name, one_in(gap, 2**15))) for name in ("bitmap", "coo"))
        assert (bitmap < coo) == (gap < 32)


def test_only_blocks_with_a_non_zero_travel_named_by_the_smaller_of_bits_and_numbers():
    values = np.zeros(256 * 800 + 10, np.float32)
    sizes = [len(encoded("block", values))]
    for at in (5, 256 * 700, 256 * 700 + 255, 256 * 800 + 1):  # the last one in a block of 10
        values[at] = np.nan
        sizes.append(len(encoded("block", values)))
    assert np.diff(sizes).tolist() == [4 + 1024, 4 + 1024, 0, 4 + 40]
    values[: 256 * 60 : 256] = 1.0
    assert len(encoded("block", values)) == HEADER + 101 + 61 * 1024 + 40


@pytest.mark.parametrize("gap", [3, 10, 100, 3000, 70_000])
def test_an_elias_fano_index_takes_at_most_two_bits_more_than_log2_of_the_gap(gap):
    numel = 40 * gap
    bits = 8 * (len(encoded("elias", one_in(gap, numel))) - HEADER - 4 * 40) / 40
    assert np.log2(gap) < bits <= np.ceil(np.log2(gap)) + 2 + 8 * 8 / 40  # 8 planes are rounded up


@given(support=supports)
def test_an_elias_packet_is_never_larger_than_a_list_a_bitmap_or_dense_values(support):
    values = sparse_values(*support)
    size = len(encoded("elias", values))
    assert size <= HEADER + 4 * len(values)
    assert size <= len(encoded("bitmap", values))
    count = np.count_nonzero(values)
    assert size <= len(encoded("coo", values)) or count < 8  # a byte is not filled


@pytest.mark.parametrize("name", HEADED)
@given(numel=st.integers(1, 3000), seed=st.integers(0, 99), density=st.floats(0.001, 1.0))
def test_one_law_for_parts_and_whole_of_a_bucket(name, numel, seed, density):
    spec = BucketSpec.uniform(numel, density)
    cuts = np.sort(np.random.default_rng(seed).integers(0, numel + 1, 4))
    parts = CODECS[name].nbytes(spec, cuts[:-1], cuts[1:], np.array([1, 2, 5]))
    alone = [
        CODECS[name].nbytes(spec, np.array([a]), np.array([b]), k)[0]
        for a, b, k in zip(cuts[:-1], cuts[1:], (1, 2, 5), strict=True)
    ]
    np.testing.assert_allclose(parts, alone, rtol=1e-12)
    assert (parts >= HEADER).all()


def test_long_runs_of_blocks_are_predicted_from_some_of_them():
    law = Sparsity(law="zipf", density=0.02, rows=2**14)
    spec = BucketSpec(((law, 2**21, 0, 2**21),))
    zero, numel = np.zeros(1, np.int64), np.array([2**21])
    cuts = np.arange(0, 2**21 + 1, 2**14)
    parts = CODECS["block"].nbytes(spec, cuts[:-1], cuts[1:], 3)
    whole = CODECS["block"].nbytes(spec, zero, numel, 3)[0]
    assert whole - HEADER == pytest.approx(float(np.sum(parts - HEADER)), rel=0.01)
