"""The base of codecs whose packets are indices and values."""

from abc import abstractmethod

from commsched.arrays import Array
from commsched.coding.codec import Codec, State
from commsched.kernels.accumulate import ADD, REPLACE, put_at
from commsched.kernels.merge import Listed, listed
from commsched.kernels.select import nonzeros


class Indexed(Codec):
    """Reads a packet as indices and values; all other values are zero."""

    @abstractmethod
    def open(self, packet: Array, numel: int) -> tuple[Array, Array]:
        """Split the packet of a run: distinct indices (m,), or a slice of all, and values."""

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        index = nonzeros(values)
        return self.pack(Listed(index, values.take(index)), len(values))

    def listed(self, packet: Array, numel: int) -> Listed:
        index, values = self.open(packet, numel)
        return listed(values) if isinstance(index, slice) else Listed(index, values)

    def decode(self, packet: Array, out: Array) -> None:
        index, values = self.open(packet, len(out))
        if not isinstance(index, slice):
            out.fill(0)
        put_at(index, values, out, REPLACE)

    def add(self, packet: Array, out: Array) -> None:
        index, values = self.open(packet, len(out))
        put_at(index, values, out, ADD)
