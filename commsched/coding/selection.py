"""The base of codecs that send some of the values with their indices."""

import copy
from abc import abstractmethod
from dataclasses import replace

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import Codec, State
from commsched.coding.dense import Dense
from commsched.coding.index import IndexCode, PlainIndices
from commsched.coding.indexed import Indexed
from commsched.coding.packet import header
from commsched.errors import CommschedError
from commsched.kernels.accumulate import TAKE_OFF, put_at
from commsched.kernels.device import numbers
from commsched.kernels.modules import module_of
from commsched.kernels.random import run_key
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec

SAMPLE = 2**18
HEADER = 24  # B: tag, number of sent values, bytes of the index part; little-endian 64-bit words
TAG = 0x00_4C_45_53  # "SEL"
BROKEN = -1  # instead of the count: the gradient is not finite, so the whole run is NaN


class Selection(Indexed):
    """Header, indices as the index code writes them, values as the value codec does.

    A run with NaN or infinity among the selected travels as a header that decodes to NaN
    everywhere: every selection here prefers NaN and infinity to any number.
    """

    lossless = False
    addable = False  # the sum of two selections has more elements than a selection
    fixed = False
    feedback = True
    composes = True  # other codecs may write its values, and other codes its indices
    add_traffic = 3.0  # read index and value, read and write the sum
    decode_traffic = 1.0  # zero the run; the scatter is small in comparison
    feedback_traffic = 4.5  # add 3, look for NaN 1, and some scattering

    def __init__(self, name: str) -> None:
        self.plain = self.name = name
        self._value: Codec = Dense()
        self._index: IndexCode = PlainIndices()

    @abstractmethod
    def select(self, values: Array, state: State, start: int) -> Array:
        """Choose the values that are sent: ascending indices of non-zeros."""

    @abstractmethod
    def kept(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        """Return the expected selected elements of [start, stop), in a sum of `merged` ranks."""

    def composed(self, value: Codec | None, index: IndexCode | None) -> "Selection":
        """Return this selection with another value codec or index code."""
        composed = copy.copy(self)
        composed._value = value or self._value
        composed._index = index or self._index
        composed.may_overflow = composed._value.may_overflow
        plain = index is None or isinstance(index, PlainIndices)
        parts = [self.plain, value.name if value else "", "" if plain else composed._index.name]
        composed.name = "/".join(part for part in parts if part)
        return composed

    def rate(self, device: Device) -> CodecRate:
        """Return the measured rate, or the selection's rate plus those of its other codes.

        Their parts of a packet are computed for a full run of SAMPLE elements.
        """
        rate = super().rate(device)
        if self.name == self.plain or self.name in device.codecs:
            return rate
        share, packet = self._shares
        value, index = self._value.rate(device), self._index
        back = index.decode_traffic / device.bandwidth + share * value.decode
        return replace(
            rate,
            encode=rate.encode + index.encode_traffic / device.bandwidth + share * value.encode,
            add=rate.add + back / packet,
            decode=rate.decode + back,
        )

    @property
    def _shares(self) -> tuple[float, float]:
        """Return the kept values, and the bytes of their packet, as shares of the run's."""
        spec, zero, whole = BucketSpec.uniform(SAMPLE), np.zeros(1, np.int64), np.array([SAMPLE])
        packet = self.nbytes(spec, zero, whole, 1)[0] / (4 * SAMPLE)
        return float(self.kept(spec, zero, whole, 1)[0]) / SAMPLE, float(packet)

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        return self.written(self.select(values, state, start), values, state, start)

    def written(self, chosen: Array, values: Array, state: State, start: int) -> Array:
        """Write the elements `chosen`, ascending, as a packet."""
        sent = values.take(chosen)
        if not (self.lossless or np.isfinite(sent).all()):
            return header((TAG, BROKEN, 0), values)
        part, index = self._index.encode(chosen, len(values), run_key(state, start))
        if index is not chosen:  # the index code added some
            sent = values.take(index)
        body = self._value.encode(sent, state, start).view(np.uint8)
        head = header((TAG, len(index), len(part)), values)
        return module_of(values).concatenate([head, part, body])

    def subtract(self, packet: Array, values: Array) -> None:
        index, sent = self.open(packet, len(values))
        put_at(index, sent, values, TAKE_OFF)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        kept, numel = self.kept(spec, start, stop, merged), np.asarray(stop - start, np.float64)
        sent = self._index.sent(kept, numel)
        # Shares of a value count: the packets' sizes are means.
        body = self._value.nbytes(spec, np.zeros(1, np.int64), sent, 1)  # type: ignore[arg-type]
        return HEADER + self._index.nbytes(kept, numel) + body

    def open(self, packet: Array, numel: int) -> tuple[Array, Array]:
        """Split a packet into indices and values, both (k,)."""
        whole = len(packet) >= HEADER
        tag, count, size = packet[:HEADER].view(np.int64).tolist() if whole else (0, 0, 0)
        if tag == TAG and count == BROKEN and len(packet) == HEADER:
            return slice(None), np.float32(np.nan)
        what = f"a packet of {len(packet)} B is not a selection coded {self.name!r}"
        wrong = CommschedError(what)
        if tag != TAG or not 0 <= count <= numel or not 0 <= size <= len(packet) - HEADER:
            raise wrong
        body = packet[HEADER + size :]
        if len(body) != self._value.packet(count).nbytes:
            raise wrong
        try:
            index = self._index.decode(packet[HEADER : HEADER + size], numel)
        except CommschedError as error:
            raise CommschedError(f"{what}: {error}") from None
        if len(index) != count:
            raise wrong
        values = module_of(packet).empty(count, np.float32)
        self._value.decode(numbers(body, np.uint8), values)
        return index, values
