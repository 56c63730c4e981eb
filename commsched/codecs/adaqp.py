"""Bits by variance: `adaqp:BITS[:STEPS]`, more bits for blocks whose values spread further."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.codecs.quant import Quant
from commsched.coding import parameters as read
from commsched.coding.bit_assignment import UNIT, WHOLE, WIDTHS, assigned, units_of
from commsched.coding.codec import Delivering, State
from commsched.coding.registry import CODECS
from commsched.kernels import bits
from commsched.kernels.accumulate import REPLACE, put
from commsched.kernels.modules import beside, module_of, on_host
from commsched.machine.model import CodecRate, Device
from commsched.net.bucket import BucketSpec

BLOCK = 256  # values that share bits and scales
QUANTS = tuple(Quant(width, False, BLOCK) for width in WIDTHS)


class AdaQP(Delivering):
    """Blocks of 256 values in 2, 4 or 8 bits, BITS in the mean, for the least variance; no bias.

    A packet has the bits of each block, and then the blocks of each width as `quant` writes them.
    Its size depends on the number of values alone: the budget, as far as blocks can use it. The
    values behind the last whole block have the most bits that are no more than BITS. With STEPS
    the spreads of blocks are measured every STEPS steps and decide until they are measured again,
    which suits messages whose rows are the same ones in every step, as in graph networks.
    Source: Wan et al., "AdaQP", MLSys 2023, whose code chooses bits every 50 steps.
    """

    standard = "adaqp:4"
    lossless = False
    addable = False
    fixed = True
    unbiased = True
    encode_traffic = 20.0
    add_traffic = 20.0
    decode_traffic = 12.0

    def __init__(self, mean: int, every: int) -> None:
        self.name = f"adaqp:{mean}" + (f":{every}" if every > 1 else "")
        self._mean, self._every = mean, every
        self.stateful = every > 1
        self.memory = 1 / BLOCK if self.stateful else 0.0
        self._tail = next(quant for quant in reversed(QUANTS) if quant.bits <= mean)

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        blocks, whole = _cut(len(values))
        rows = values[:whole].reshape(blocks, BLOCK)
        widths = self._widths(rows, state, start)
        packet = module_of(values).zeros(self._size(len(values)), np.uint8)
        head = beside(bits.pack(widths, 2), values)
        packet[: len(head)] = head
        first = start  # of the values in the order of the packet: each draws numbers of its own
        for quant, mine, at in self._parts(widths, len(values)):
            part = quant.encode(rows[beside(mine, values)].reshape(-1), state, first)
            packet[at : at + len(part)] = part
            first += len(mine) * BLOCK
        if whole < len(values):
            tail = self._tail.encode(values[whole:], state, first)
            packet[len(packet) - len(tail) :] = tail
        return packet

    def _widths(self, rows: Array, state: State, start: int) -> Array:
        """Return the number of each block's width: (blocks,) uint8."""
        key, step = f"adaqp {start}", int(state.get("step", 0))
        since, kept = state.get(key, (0, None)) if self.stateful else (0, None)
        if kept is not None and len(kept) == len(rows) and since <= step < since + self._every:
            return on_host(kept)  # a checkpoint is restored to the device
        with np.errstate(invalid="ignore"):
            spread = rows.max(axis=1).astype(np.float64) - rows.min(axis=1)
        spread = on_host(spread)
        spread[~np.isfinite(spread)] = 0.0  # written as NaN in any bits
        widths = assigned(spread, units_of(len(rows), self._mean))
        if self.stateful:
            state[key] = step, widths
        return widths

    def deliver(self, packet: Array, out: Array, way: int) -> None:
        packet = packet.view(np.uint8)
        widths = self._read(packet, len(out))
        blocks, whole = _cut(len(out))
        found = out if way == REPLACE else module_of(out).empty(len(out), np.float32)
        rows = found[:whole].reshape(blocks, BLOCK)
        for quant, mine, at in self._parts(widths, len(out)):
            part = module_of(out).empty((len(mine), BLOCK), np.float32)
            nbytes = len(quant.packet(part.size))
            quant.decode(packet[at : at + nbytes], part.reshape(-1))
            rows[beside(mine, out)] = part
        if whole < len(out):
            nbytes = len(self._tail.packet(len(out) - whole))
            self._tail.decode(packet[len(packet) - nbytes :], found[whole:])
        if way != REPLACE:
            put(found, out, way)

    def _read(self, packet: Array, numel: int) -> Array:
        """Return the number of each block's width: (blocks,) uint8 in NumPy."""
        blocks, _ = _cut(numel)
        good = len(packet) == self._size(numel)
        if good:
            widths = bits.unpack(on_host(packet[: bits.packed_bytes(blocks, 2)]), blocks, 2)
            units = units_of(blocks, self._mean)
            good = int(np.array([0, 1, WHOLE, units + 1])[widths].sum()) <= units
        if not good:
            raise self.wrong(packet, numel)
        return widths

    def _parts(self, widths: Array, numel: int) -> Iterator[tuple[Quant, Array, int]]:
        """Yield each width that blocks have, the blocks, and where their packet begins."""
        at = _head(_cut(numel)[0])
        for number, quant in reversed([*enumerate(QUANTS)]):
            mine = np.flatnonzero(widths == number)
            if len(mine):
                yield quant, mine, at
                at += len(quant.packet(len(mine) * BLOCK))

    def _size(self, numel: int) -> int:
        """Count the bytes of a packet."""
        blocks, whole = _cut(numel)
        least = len(QUANTS[0].packet(whole)) + units_of(blocks, self._mean) * UNIT * BLOCK // 8
        return _head(blocks) + least + len(self._tail.packet(numel - whole))

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        counts = np.asarray(stop - start, np.int64)
        return np.array([self._size(int(count)) for count in counts.reshape(-1)], np.float64)

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(self._size(values), np.uint8)

    def rate(self, device: Device) -> CodecRate:
        """Return the rates of `quant`, plus reading blocks' spreads and sorting by width."""
        for name in (self.name, self.standard):
            if name in device.codecs:
                return device.codecs[name]
        rate = QUANTS[-1].rate(device)
        encode, decode = (traffic / device.bandwidth for traffic in (12.0, 8.0))
        return replace(rate, encode=rate.encode + encode, decode=rate.decode + decode)


def _cut(numel: int) -> tuple[int, int]:
    """Return the number of whole blocks, and of their values."""
    blocks = numel // BLOCK
    return blocks, blocks * BLOCK


def _head(blocks: int) -> int:
    """Count the bytes in front of the first scale, which begins at a whole word."""
    return -(-bits.packed_bytes(blocks, 2) // 4) * 4


@CODECS.family(AdaQP.standard, listed=False)
def adaqp(parameters: list[str]) -> AdaQP:
    """Read BITS and STEPS."""
    read.at_most(parameters, 2)
    mean, every = (*parameters, "1")[:2]
    bounds = WIDTHS[0] + 1, WIDTHS[-1] - 1
    return AdaQP(
        read.whole(mean, "the mean bits of a value", *bounds),
        read.whole(every, "the steps from one choice of bits to the next", 1, 10**8),
    )
