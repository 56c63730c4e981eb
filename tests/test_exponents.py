"""Exponents of four bits: the same words again, an eighth smaller, never larger, refusals."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.codecs import elias
from commsched.coding.packet import HEADER
from commsched.errors import CommschedError
from commsched.kernels.exponents import narrow_bytes, open_values, pack_values
from commsched.kernels.merge import listed

words = st.lists(st.integers(0, 2**32 - 1), max_size=70)


@given(words=words, near=st.booleans())
def test_every_word_comes_back_in_less_than_four_bytes(words, near):
    held = np.array(words, np.uint32)
    if near:  # exponents from 120 to 123, zeros
        held = (held & 0x81FFFFFF | 0x3C000000) * (held % 5 > 0).astype(np.uint32)
    packed = pack_values(held.view(np.float32), 70)
    if packed is None:
        assert not near or len(held) < 4
        return
    assert len(packed) < 4 * len(held)
    assert len(packed) == narrow_bytes(len(held)) or not near
    found = open_values(packed, len(held), 70)
    assert found is not None
    np.testing.assert_array_equal(found.view(np.uint32), held)


@pytest.mark.parametrize("spread", [0, 13, 14, 40])
def test_only_exponents_more_than_13_below_the_largest_escape(spread):
    values = np.ones(64, np.float32)
    values[5] = 2.0**-spread
    assert len(pack_values(values, len(values))) == narrow_bytes(64) + (spread > 13)
    np.testing.assert_array_equal(open_values(pack_values(values, 64), 64, 64), values)


def test_normal_values_escape_as_rarely_as_the_docstring_says():
    values = np.random.default_rng(4).standard_normal(2**20).astype(np.float32)
    escaped = len(pack_values(values, len(values))) - narrow_bytes(len(values))
    # below 2**(k - 13) for the largest one in [2**k, 2**(k + 1)), k = 2: 2 phi(0) 2**-11
    assert escaped == pytest.approx(0.798 * 2**-11 * len(values), rel=0.2)


def test_a_golden_narrow_list():
    values = np.array([0, 1.5, 0, -2, 1e-9, 0.75, 1, 1, 1, 1], np.float32)
    # -2 has the largest exponent, 128; 1 and 1.5 are 1 below it, .75 2, and 97 of 1e-9 escapes
    low, middle = "00000000 5f70" + "0000" * 5, "40 80 09 40" + "00" * 4
    codes, top, escapes, bitmap = "ed cf dd dd", "80", "61", "fa03"
    head = "454c4941 53000001 08000000 00000000"
    want = bytes.fromhex(f"{head} {low} {middle} {codes} {top} {escapes} {bitmap}")
    packet = elias.pack_list(*listed(values), len(values), narrow=True)
    assert packet.tobytes().hex(" ") == want.hex(" ")


@pytest.mark.parametrize("damage", ["short", "long", "escape", "below"])
def test_a_damaged_narrow_list_is_refused(damage):
    values = np.where(np.arange(200) % 9 == 0, 1.5, 0).astype(np.float32)
    values[:9:4] = [1e-30, 30, 1e-30]
    packet = elias.pack_list(*listed(values), len(values), narrow=True)
    count = np.count_nonzero(values)
    top = HEADER + narrow_bytes(count) - 1
    if damage == "short":
        packet = packet[:-1]
    elif damage == "long":
        packet = np.append(packet, np.uint8(0))
    elif damage == "escape":
        packet[HEADER + 3 * count] ^= 0xFF
    else:
        packet[top] = 1
    with pytest.raises(CommschedError, match="Elias-Fano list of 200 elements"):
        elias.open_list(packet, 200)
