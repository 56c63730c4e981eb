"""Codecs work where the gradient lies: packets and values are arrays of its module."""

import numpy as np
import pytest

from commsched.coding.registry import CODECS
from tests.support import strict_arrays
from tests.test_codecs_lossy import LOSSY

NAMES = list(dict.fromkeys([*CODECS, *LOSSY]))
STATE = {"seed": 1, "step": 3, "rank": 0, "name": "w"}


def gradient(name: str, numel: int) -> np.ndarray:
    rng = np.random.default_rng(numel)
    values = rng.standard_normal(numel).astype(np.float32)
    if CODECS[name].lossless:
        values[rng.random(numel) > 0.02] = 0
    return values


@pytest.mark.by_day(72)
@pytest.mark.parametrize("numel", [1, 700, 70_001])
@pytest.mark.parametrize("name", NAMES)
def test_an_array_of_another_module_is_coded_there_to_the_same_bits(name, numel):
    codec, values = CODECS[name], gradient(name, numel)
    wanted = codec.encode(values.copy(), dict(STATE)).copy()
    packet = codec.encode(strict_arrays.asarray(values), dict(STATE))
    assert isinstance(packet, strict_arrays.ndarray)
    np.testing.assert_array_equal(packet.held.view(np.uint8), wanted.view(np.uint8))
    for use in (codec.decode, codec.add, codec.subtract):
        here, there = np.ones(numel, np.float32), strict_arrays.asarray(np.ones(numel, np.float32))
        use(wanted, here)
        use(packet, there)
        np.testing.assert_array_equal(there.held, here)


@pytest.mark.parametrize("name", NAMES)
def test_packets_of_several_ranks_are_combined_there(name):
    codec = CODECS[name]
    packets = [codec.encode(gradient(name, 700) * (r + 1), STATE | {"rank": r}) for r in range(3)]
    packets = [packet.copy() for packet in packets]
    here, there = np.ones(700, np.float32), strict_arrays.asarray(np.ones(700, np.float32))
    codec.combine(packets, here)
    codec.combine([strict_arrays.asarray(packet) for packet in packets], there)
    np.testing.assert_array_equal(there.held, here)
