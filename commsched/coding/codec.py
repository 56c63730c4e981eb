"""What every codec offers: encode and decode, and the prediction of its bytes and seconds."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.kernels.finite import finite
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec

State = dict[str, Any]  # named arrays of one rank and bucket that live from step to step


class Codec(ABC):
    """Writes a run of float32 values as a packet, a 1-D array that MPI sends as bytes.

    A packet that was received may be an array of bytes: `decode` and `add` view it as they need.
    A packet whose length follows from the number of values (`fixed`) has no header: the plan, whose
    hash all ranks compare, already says what it is. Any other packet describes itself.
    """

    name: str
    lossless: bool
    # Sums of partial sums may be encoded again; what was decoded encodes without further loss,
    # also where a schedule joins runs on the way back.
    addable: bool
    fixed: bool  # packet bytes depend on the number of values alone
    sums_exactly: bool = False  # of a lossy one that adds: sums of what was decoded, too
    unbiased: bool = False  # of a lossy codec: what is decoded is right on average
    stateful: bool = False  # reads and writes keys of its own in the state
    memory: float = 0.0  # B per value that it keeps there from step to step
    parts: int = 0  # of the index sets that it holds for every length of a run, see `hashing`
    # Without error feedback it would lose the same again and again: the sender adds what it kept
    # before it encodes, and keeps what was not sent. Rounding to 16 bits does not need it.
    feedback: bool = False
    no_feedback: str = ""  # why feedback cannot be put around it
    codes_values: bool = False  # may code the values that a selection kept
    standard: str = ""  # the listed codec of the same family, whose measured rate may serve
    # Memory traffic for seconds that nobody measured: B moved per B of (values, packet, values).
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
        """Expected packet bytes for elements [start, stop) that sum `merged` ranks: (m,)."""

    def encode_kept(self, values: Array, lost: Array, state: State) -> tuple[Array, bool]:
        """Add `lost` to (n,) float32 in place and encode the sums; whether all are finite, too."""
        values += lost
        return self.encode(values, state), finite(values)

    def combine(self, packets: list[Array], out: Array) -> None:
        """Overwrite `out` (n,) float32 with the sum of packets in rank order."""
        self.decode(packets[0], out)
        for packet in packets[1:]:
            self.add(packet, out)

    def subtract(self, packet: Array, values: Array) -> None:
        """Take what a packet delivers from `values` (n,) float32, in place."""
        delivered = np.empty_like(values)
        self.decode(packet, delivered)
        values -= delivered

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        """An empty NumPy packet to receive into: for `values` values, or of `nbytes` bytes."""
        assert nbytes is not None, "only codecs of fixed size know it beforehand"
        return np.empty(nbytes, np.uint8)

    def at(self, step: int) -> "Codec":
        """Return the codec as it behaves, and predicts bytes, in a step of a training."""
        return self

    def rate(self, device: Device) -> CodecRate:
        """Seconds per byte: as measured on the device, else memory traffic over its bandwidth.

        encode and decode count bytes of values, add counts bytes of packets.
        """
        for name in (self.name, self.standard):
            if name in device.codecs:
                return device.codecs[name]
        return CodecRate(
            encode=self.encode_traffic / device.bandwidth,
            add=self.add_traffic / device.bandwidth,
            decode=self.decode_traffic / device.bandwidth,
            source="memory traffic over bandwidth",
        )
