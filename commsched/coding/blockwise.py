"""The base of codecs that write a few bits per value and one or two scales per block of values."""

from abc import abstractmethod
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding.codec import Delivering, State
from commsched.kernels import bits
from commsched.kernels.accumulate import REPLACE, put
from commsched.kernels.device import device
from commsched.kernels.modules import module_of
from commsched.kernels.quantise import UNITS, EvenSteps
from commsched.kernels.random import run_key
from commsched.net.bucket import BucketSpec

CHUNK = 1 << 16  # values at a time: temporary arrays stay in the cache
LARGEST = float(np.finfo(np.float32).max)
ABOVE = 1.0 + 2.0**-20  # scales are this much larger, so that no rounding leads beyond the codes


class Blockwise(Delivering):
    """Scales of all blocks, (blocks, columns) float32, then the codes of all values, packed.

    Blocks with NaN or infinity have NaN scales and decode to NaN.
    """

    lossless = False
    addable = False  # a sum has other scales, and would be rounded again at every hop
    fixed = True
    codes_values = True
    block = 512  # values that share scales, a multiple of 8 and a divisor of CHUNK
    columns = 1  # scales of a block
    bits: int
    stepped = False  # rounds to steps
    dithers = False  # at random

    @abstractmethod
    def code(self, values: Array, steps: EvenSteps | None) -> tuple[Array, Array]:
        """(rows, width) float32 -> scales (rows, columns) float32 and codes (rows, width)."""

    @abstractmethod
    def value(self, codes: Array, scales: Array, out: Array) -> None:
        """Overwrite `out` (rows, width) float32 with the decoded values."""

    def encode_there(
        self, kernels: ModuleType, values: Array, key: int | None, scales: Array, codes: Array
    ) -> bool:
        """Write scales and packed codes by one CUDA kernel; False if there is no such kernel."""
        return False

    def decode_there(
        self, kernels: ModuleType, codes: Array, scales: Array, out: Array, way: int
    ) -> bool:
        """Decode packed codes into `out` as `way` says; False if no CUDA kernel does it."""
        return False

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        packet = self._empty(values, len(values))
        scales, codes = self._split(packet, len(values))
        key = run_key(state, start) if self.dithers else None
        gpu = device(values)
        if gpu is not None and self.encode_there(gpu.quantise, values, key, scales, codes):
            return packet
        steps = EvenSteps(key, min(CHUNK, len(values)), values) if self.stepped else None
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for row, first, stop, width in self._pieces(len(values)):
                scale, code = self.code(values[first:stop].reshape((-1, width)), steps)
                scales[row : row + len(scale)] = scale
                packed = bits.pack(code.reshape(-1), self.bits)
                at = first * self.bits // 8
                codes[at : at + len(packed)] = packed
        return packet

    def deliver(self, packet: Array, out: Array, way: int) -> None:
        scales, packed = self._split(packet, len(out))
        gpu = device(out)
        if gpu is not None and self.decode_there(gpu.quantise, packed, scales, out, way):
            return
        room = None if way == REPLACE else module_of(out).empty(min(CHUNK, len(out)), np.float32)
        for row, first, stop, width in self._pieces(len(out)):
            shape = (-1, width)
            codes = bits.unpack(packed[first * self.bits // 8 :], stop - first, self.bits)
            rows = (stop - first) // width
            scale = scales[row : row + rows]
            mine = out[first:stop]
            found = mine if room is None else room[: stop - first]
            self.value(codes.reshape(shape), scale, found.reshape(shape))
            if room is not None:
                put(found, mine, way)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        count = np.asarray(stop - start, np.float64)
        scales = 4.0 * self.columns * np.ceil(count / self.block)
        whole = self.bits in (1, 2, 4, 8)  # codes in a byte; else in planes of one bit each
        planes = self.bits // 8 * count + self.bits % 8 * np.ceil(count / 8)
        packed = np.ceil(count * self.bits / 8) if whole else planes
        return np.asarray(scales + packed)

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(self._scale_bytes(values) + bits.packed_bytes(values, self.bits), np.uint8)

    def _empty(self, like: Array, numel: int) -> Array:
        size = self._scale_bytes(numel) + bits.packed_bytes(numel, self.bits)
        return module_of(like).empty(size, np.uint8)

    def _scale_bytes(self, numel: int) -> int:
        return 4 * self.columns * -(-numel // self.block)

    def _split(self, packet: Array, numel: int) -> tuple[Array, Array]:
        """Return views of the scales, (blocks, columns) float32, and of the packed codes."""
        packet, size = packet.view(np.uint8), self._scale_bytes(numel)
        if len(packet) != size + bits.packed_bytes(numel, self.bits):
            raise self.wrong(packet, numel)
        return packet[:size].view(np.float32).reshape(-1, self.columns), packet[size:]

    def _pieces(self, numel: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield first block, first and last value, and width of a block for each piece of a run."""
        full = numel // self.block * self.block
        for first in range(0, full, CHUNK):
            yield first // self.block, first, min(first + CHUNK, full), self.block
        if full < numel:
            yield full // self.block, full, numel, numel - full


class EvenLevels(Blockwise):
    """Whole multiples, from -levels to levels, of an even share of the block's largest magnitude.

    Values are rounded at random, so without bias; the error of a value is below one level.
    """

    unbiased = True
    stepped = True
    dithers = True
    levels: int

    def code(self, values: Array, steps: EvenSteps | None) -> tuple[Array, Array]:
        assert steps is not None
        high, low = values.max(axis=1, keepdims=True), values.min(axis=1, keepdims=True)
        scale = np.maximum(np.abs(high), np.abs(low)).astype(np.float64) * ABOVE
        scale = np.where(np.isfinite(scale), scale, np.nan)
        # Below this, which is negligible in a gradient, the block counts as zero.
        step = np.where(scale < 2.0**-100, np.inf, scale) / (UNITS * self.levels)
        inverse = (1.0 / step).astype(np.float32)
        codes = steps.numbers(values, np.zeros_like(inverse), inverse, UNITS * self.levels)
        return np.minimum(scale, LARGEST).astype(np.float32), codes

    def value(self, codes: Array, scales: Array, out: Array) -> None:
        unit = scales / np.float32(self.levels)
        np.subtract(codes, np.float32(self.levels), out=out)
        np.multiply(out, unit, out=out)

    def encode_there(
        self, kernels: ModuleType, values: Array, key: int | None, scales: Array, codes: Array
    ) -> bool:
        form = self.block, self.bits, self.levels, ABOVE
        kernels.levels(values, *form, key, scales, codes)
        return True

    def decode_there(
        self, kernels: ModuleType, codes: Array, scales: Array, out: Array, way: int
    ) -> bool:
        kernels.level_values(codes, scales, self.block, self.bits, self.levels, out, way)
        return True
