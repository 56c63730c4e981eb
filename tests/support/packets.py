"""Packets of codecs for tests, as they arrive."""

import numpy as np

from commsched.coding.registry import CODECS
from commsched.net.bucket import BucketSpec

EXACT = [name for name in CODECS if CODECS[name].lossless]


def encoded(name: str, values: np.ndarray) -> np.ndarray:
    """A packet as it arrives: its own memory, as bytes."""
    return CODECS[name].encode(values, {}).copy().view(np.uint8)


def decoded(name: str, packet: np.ndarray, numel: int) -> np.ndarray:
    out = np.full(numel, 7.0, np.float32)
    CODECS[name].decode(packet, out)
    return out


def round_trip(name: str, values: np.ndarray) -> np.ndarray:
    return decoded(name, encoded(name, values), len(values))


def expected_bytes(name: str, spec: BucketSpec, merged: int = 1) -> float:
    zero, numel = np.zeros(1, np.int64), np.array([spec.numel])
    (found,) = np.atleast_1d(CODECS[name].nbytes(spec, zero, numel, merged))
    return float(found)
