"""The interface of codecs: encode and decode, and the prediction of bytes and seconds."""

from abc import ABC, abstractmethod
from math import inf
from typing import Any

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.errors import CommschedError
from commsched.kernels.accumulate import ADD, REPLACE, TAKE_OFF, put
from commsched.kernels.finite_check import finite
from commsched.kernels.merge import Listed
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec

State = dict[str, Any]  # named arrays of one rank and bucket that live from step to step


class Codec(ABC):
    """Writes a run of float32 values as a packet, a 1-D array that MPI sends as bytes.

    A received packet may be an array of bytes, which `decode` and `add` view as they need.
    A packet whose length follows from the number of values (`fixed`) has no header: the plan, whose
    hash all ranks compare, already says what it is. Any other packet describes itself.
    """

    name: str
    lossless: bool
    # True: sums of partial sums may be encoded again, and decoded values encode without further
    # loss, even if a schedule joins runs on the way back.
    addable: bool
    fixed: bool  # packet bytes depend on the number of values alone
    sums_exactly: bool = False  # of a lossy codec that adds: sums of decoded values are exact, too
    unbiased: bool = False  # of a lossy codec: the expected decoded value is the value
    stateful: bool = False  # reads and writes keys of its own in the state
    memory: float = 0.0  # B per value that the codec keeps in the state from step to step
    parts: int = 0  # number of parts of its index sets, see `hashing`
    # True: without error feedback the codec would lose equal values in every step. The sender adds
    # the kept values before it encodes, and keeps the unsent ones. Rounding to 16 bits needs none.
    feedback: bool = False
    no_feedback: str = ""  # why the codec cannot have feedback
    may_overflow: bool = False  # finite values may be decoded as infinity
    largest: float = inf  # larger values or sums are sent as this value
    votes: bool = False  # `combine` takes a vote, which is no sum
    codes_values: bool = False  # may code the values of a selection
    lists: bool = False  # writes and reads lists of non-zeros without a dense run
    standard: str = ""  # a codec of the same family whose measured rate may serve
    alike: tuple[str, ...] = ()  # unlisted codecs of the family whose rates are measured, too
    # Memory traffic for unmeasured seconds: B moved per B of (values, packet, values).
    encode_traffic: float
    add_traffic: float
    decode_traffic: float
    feedback_traffic: float = 9.0  # add 3, look for NaN 1, decode 2, subtract 3

    @abstractmethod
    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        """(n,) float32, elements [start, start + n) of the bucket -> packet. May be a view."""

    @abstractmethod
    def decode(self, packet: Array, out: Array) -> None:
        """Overwrite `out` (n,) float32 with the packet's values."""

    @abstractmethod
    def add(self, packet: Array, out: Array) -> None:
        """Add the packet's values to `out` (n,) float32, in place."""

    @abstractmethod
    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the expected packet B for elements [start, stop), `merged` ranks summed: (m,)."""

    def plain_sum(self, packet: Array, out: Array) -> tuple[Array, Array] | None:
        """Return float32 (n,) `came` and `into` if `add` is just into += came; None: it is not."""
        return None

    def encode_kept(self, values: Array, lost: Array, state: State) -> tuple[Array, bool]:
        """Add `lost` to (n,) float32 in place; return the encoded sums, and if all are finite."""
        put(lost, values, ADD)
        return self.encode(values, state), finite(values)

    def combine(self, packets: list[Array], out: Array) -> None:
        """Overwrite `out` (n,) float32 with the sum of packets in rank order, or their vote."""
        self.decode(packets[0], out)
        for packet in packets[1:]:
            self.add(packet, out)

    def subtract(self, packet: Array, values: Array) -> None:
        """Subtract a packet's values from `values` (n,) float32, in place."""
        delivered = np.empty_like(values)
        self.decode(packet, delivered)
        put(delivered, values, TAKE_OFF)

    def pack(self, found: Listed, numel: int) -> Array:
        """Write a run's non-zeros as `encode` does; for codecs with `lists`."""
        raise AssertionError(f"codec {self.name!r} has no lists")

    def listed(self, packet: Array, numel: int) -> Listed:
        """Read the packet of a run as its non-zeros; for codecs with `lists`."""
        raise AssertionError(f"codec {self.name!r} has no lists")

    def feedback_rate(self, device: Device) -> float:
        """Return the s/B of values that error feedback adds to `encode`; 0 without feedback."""
        if not self.feedback:
            return 0.0
        measured = self.rate(device).feedback
        traffic = self.feedback_traffic + self.may_overflow  # look for infinity 1
        return traffic / device.bandwidth if measured is None else measured

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        """Make an empty NumPy packet to receive into: for `values` values, or of `nbytes` bytes."""
        assert nbytes is not None, "only codecs of fixed size know it beforehand"
        return np.empty(nbytes, np.uint8)

    def wrong(self, packet: Array, numel: int) -> CommschedError:
        """Return the refusal of a packet that does not hold `numel` values."""
        return CommschedError(
            f"a packet of {packet.nbytes} B does not hold {numel} values coded {self.name!r}"
        )

    def at(self, step: int) -> "Codec":
        """Return the codec with its behaviour and predicted bytes in a step of a training."""
        return self

    def rate(self, device: Device) -> CodecRate:
        """Return the s/B: as measured on the device, else memory traffic over its bandwidth.

        encode and decode count bytes of values, add counts bytes of packets.
        """
        if self.name in device.codecs:
            return device.codecs[self.name]
        if self.standard in device.codecs:
            return device.codecs[self.standard]
        return CodecRate(
            encode=self.encode_traffic / device.bandwidth,
            add=self.add_traffic / device.bandwidth,
            decode=self.decode_traffic / device.bandwidth,
            source="memory traffic over bandwidth",
        )


class Delivering(Codec):
    """A codec with one function that replaces, adds to or subtracts from values."""

    @abstractmethod
    def deliver(self, packet: Array, out: Array, way: int) -> None:
        """Write a packet's values to `out` (n,) float32, add or subtract them, as `way` says."""

    def decode(self, packet: Array, out: Array) -> None:
        self.deliver(packet, out, REPLACE)

    def add(self, packet: Array, out: Array) -> None:
        self.deliver(packet, out, ADD)

    def subtract(self, packet: Array, values: Array) -> None:
        self.deliver(packet, values, TAKE_OFF)
