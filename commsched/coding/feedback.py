"""Error feedback around any lossy codec without feedback of its own: `CODEC:feedback`."""

from dataclasses import replace
from math import floor, isfinite, log2

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import Codec, State
from commsched.errors import CommschedError
from commsched.kernels.modules import module_of
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec

SUFFIX = ":feedback"
PRODUCTS = 12.0  # B moved per B of values for three dot products


class Fed(Codec):
    """Another codec's packets; the sender adds its kept values, and keeps the unsent ones.

    Good around codecs that round to nearest; codecs that round at random have no bias without it.
    The loss of an unbiased codec w -> q may be larger than w, and would grow without bound under
    feedback. If |w - q|^2 > |w|^2 / 2 the sender writes f w instead, with f the power of
    two at or below <w, q> / <q, q>: with the same random numbers f q travels, |w - f q| < |w|.
    Seconds are predicted as if this were always the case.
    Source: Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019; for the factor Beznosikov
    et al., "On biased compression for distributed learning", JMLR 24, 2023.
    """

    lossless = False
    feedback = True

    def __init__(self, inner: Codec) -> None:
        self.name = inner.name + SUFFIX
        self.standard = inner.standard
        self.addable, self.fixed = inner.addable, inner.fixed
        self.stateful, self.memory = inner.stateful, inner.memory
        self.sums_exactly = inner.sums_exactly
        self.encode_traffic = inner.encode_traffic
        self.add_traffic, self.decode_traffic = inner.add_traffic, inner.decode_traffic
        self.feedback_traffic = inner.feedback_traffic
        self.may_overflow = inner.may_overflow
        self._inner = inner

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        packet = self._inner.encode(values, state, start)
        factor = self._factor(packet, values) if self._inner.unbiased else 1.0
        if factor == 1.0:
            return packet
        return self._inner.encode(values * np.float32(factor), state, start)

    def _factor(self, packet: Array, values: Array) -> float:
        """Return the factor on the values with which their loss is smaller than they are."""
        sent = np.empty_like(values)
        self._inner.decode(packet, sent)
        pairs = (values, values), (values, sent), (sent, sent)
        for precision in (np.float32, np.float64):  # the latter holds every square
            with np.errstate(over="ignore", invalid="ignore"):
                sums = [np.multiply(a, b, dtype=precision).sum(dtype=np.float64) for a, b in pairs]
            whole, along, square = module_of(values).stack(sums).tolist()  # one read of a GPU
            if isfinite(whole + along + square):
                break
        if not whole - 2 * along + square > whole / 2:  # or a value is not finite
            return 1.0
        return min(2.0 ** floor(log2(along / square)), 1.0) if along > 0 else 0.0

    def decode(self, packet: Array, out: Array) -> None:
        self._inner.decode(packet, out)

    def add(self, packet: Array, out: Array) -> None:
        self._inner.add(packet, out)

    def combine(self, packets: list[Array], out: Array) -> None:
        self._inner.combine(packets, out)

    def subtract(self, packet: Array, values: Array) -> None:
        self._inner.subtract(packet, values)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return self._inner.nbytes(spec, start, stop, merged)

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return self._inner.packet(values, nbytes)

    def rate(self, device: Device) -> CodecRate:
        if self.name in device.codecs:
            return device.codecs[self.name]
        rate = self._inner.rate(device)
        if not self._inner.unbiased:
            return rate
        twice = 2 * rate.encode + rate.decode + PRODUCTS / device.bandwidth
        return replace(rate, encode=twice)


def fed(inner: Codec) -> Codec:
    """Put error feedback around a codec; return a codec with feedback unchanged."""
    if inner.feedback:
        return inner
    reason = "a lossless codec has no loss to feed back" if inner.lossless else inner.no_feedback
    if reason:
        raise CommschedError(f"codec {inner.name + SUFFIX!r}: {reason}")
    return Fed(inner)
