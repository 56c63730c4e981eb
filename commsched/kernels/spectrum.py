"""Spectra of a gradient's pieces: transform, keep the strongest bins, transform back.

A run is cut into pieces of 8192 values; each piece is transformed on its own. Zeros fill the last
piece up to a length whose transform is fast. A piece's transform fits into a cache, and into a
GPU's shared memory: a run of any length is read and written once each way. `cuda.spectrum` counts
the passes.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.kernels import bits, half, select
from commsched.kernels.accumulate import put
from commsched.kernels.device import device
from commsched.kernels.modules import module_of
from commsched.kernels.rangefloat import RangeFloat

PIECE = 8192  # values
SCALE = 4  # B before the bitmap of a packet: the largest magnitude, float32
GROUP = 8  # pieces at a time: temporary arrays stay in the cache


class SpectrumPart(NamedTuple):
    """Pieces of one length, or the rest of a run."""

    first: int  # value
    stop: int
    length: int  # of each transform
    start: int  # bin
    bins: int  # of each transform

    @property
    def rows(self) -> int:
        """Return the number of transforms."""
        return -(-(self.stop - self.first) // self.length)

    @property
    def end(self) -> int:
        """Return the bin behind the last one."""
        return self.start + self.rows * self.bins

    @property
    def whole(self) -> bool:
        """Tell whether these are whole pieces, without padding."""
        return self.stop - self.first == self.rows * PIECE


@cache
def fast_length(numel: int) -> int:
    """Return the smallest product of powers of 2, 3 and 5 not below `numel`, at least 1.

    A transform whose length has a large prime factor takes ten times as long and more.
    """
    best, fives = _power_of_two(numel), 1
    while fives < best:
        threes = fives
        while threes < best:
            best = min(best, threes * _power_of_two(-(-numel // threes)))
            threes *= 3
        fives *= 5
    return best


def _power_of_two(numel: int) -> int:
    """Return the smallest power of 2 that is not below."""
    return 1 << max(numel - 1, 0).bit_length()


def bins_of(numel: int) -> int:
    """Return the number of bins of a run."""
    rest = numel % PIECE
    return numel // PIECE * (PIECE // 2 + 1) + (fast_length(rest) // 2 + 1 if rest else 0)


def _parts(numel: int, pieces: int) -> Iterator[SpectrumPart]:
    """Cut a run into groups of pieces, then yield the rest."""
    full, bins = numel // PIECE * PIECE, PIECE // 2 + 1
    for first in range(0, full, pieces * PIECE):
        stop = min(first + pieces * PIECE, full)
        yield SpectrumPart(first, stop, PIECE, first // PIECE * bins, bins)
    if full < numel:
        length = fast_length(numel - full)
        yield SpectrumPart(full, numel, length, full // PIECE * bins, length // 2 + 1)


def forward(values: Array, lost: Array | None = None) -> Array:
    """Return the bins of (n,) float32, rounded to fp16: (bins_of(n),) complex64.

    `lost` is added first, in place.
    """
    module, gpu = module_of(values), device(values)
    spectrum = module.empty(bins_of(len(values)), np.complex64)
    for part in _parts(len(values), GROUP if gpu is None else len(values)):
        mine, bins = values[part.first : part.stop], spectrum[part.start : part.end]
        kept = None if lost is None else lost[part.first : part.stop]
        if gpu is not None and part.whole:
            gpu.spectrum.forward(mine, kept, bins)
            continue
        if kept is not None:
            mine += kept
        rows = half.from_fp16(half.to_fp16(mine)).reshape(part.rows, -1)
        found = module.fft.rfft(rows, part.length)
        bins[:] = found.reshape(-1).astype(np.complex64, copy=False)
    return spectrum


def strongest(spectrum: Array, count: int, form: RangeFloat) -> tuple[Array, Array, Array]:
    """Return the largest magnitude, which bins are the `count` strongest, and their codes.

    (1,) float32; a bitmap, (ceil(bins / 8),) uint8; (2 count,) uint16, real and imaginary parts of
    bins in order, as shares of the largest magnitude. Among equal powers the first are taken.
    """
    gpu = device(spectrum)
    if gpu is not None:
        found: tuple[Array, Array, Array] = gpu.spectrum.strongest(spectrum, count, tuple(form))
        return found
    module, power = module_of(spectrum), _powers(spectrum)
    largest = np.sqrt(module.max(power))
    kept = select.largest(power, count)
    if len(kept) < count:
        zero = module.flatnonzero(power == 0)[: count - len(kept)]
        kept = module.sort(module.concatenate([kept, zero]))
    hit = module.zeros(len(power), np.uint8)
    hit[kept] = 1
    unit = np.float32(1) / largest if largest > 0 else np.float32(0)
    codes = module.empty(2 * count, np.uint16)
    for at in range(0, count, select.CHUNK):
        parts = spectrum[kept[at : at + select.CHUNK]].view(np.float32) * unit
        codes[2 * at : 2 * at + len(parts)] = form.encode(parts)
    return largest.reshape(1), bits.pack_flags(hit), codes


def _powers(spectrum: Array) -> Array:
    """Return squared magnitudes: (n,) float32; halves of transforms this short do not overflow."""
    parts = spectrum.view(np.float32)
    power = module_of(spectrum).empty(len(spectrum), np.float32)
    for at in range(0, len(power), select.CHUNK):
        mine = parts[2 * at : 2 * (at + select.CHUNK)]
        mine = mine * mine
        np.add(mine[::2], mine[1::2], out=power[at : at + select.CHUNK])
    return power


def deliver(packets: list[Array], count: int, form: RangeFloat, out: Array, way: int) -> bool:
    """Put the sum of packets into (n,) float32 `out` as `way` says.

    A packet is, as bytes, the largest magnitude, the bitmap and the packed codes that `strongest`
    gives. Spectra are summed in the packets' order, and the sum is transformed back once. False
    if a bitmap does not have `count` bins.
    """
    module, gpu, numel = module_of(out), device(out), len(out)
    bins = bins_of(numel)
    full = numel // PIECE * PIECE if gpu is not None else 0
    spectrum = module.zeros(bins - bins_of(full), np.complex64)
    if gpu is not None:
        given = packets, count, tuple(form), out, way, spectrum
        if not gpu.spectrum.deliver(*given):
            return False
    elif not all(_add(packet, count, form, spectrum) for packet in packets):
        return False
    behind = out[full:]
    for part in _parts(len(behind), GROUP):
        rows = spectrum[part.start : part.end].reshape(part.rows, -1)
        found = module.fft.irfft(rows, part.length).reshape(-1)
        mine = behind[part.first : part.stop]
        put(found[: len(mine)].astype(np.float32, copy=False), mine, way)
    return True


def _add(packet: Array, count: int, form: RangeFloat, spectrum: Array) -> bool:
    """Add the bins of a packet to others; False if their number is not `count`."""
    end = SCALE + bits.packed_bytes(len(spectrum))
    index = bits.set_bits(packet[SCALE:end], len(spectrum))
    if len(index) != count:
        return False
    parts = form.decode(bits.unpack(packet[end:], 2 * count, form.bits))
    parts *= packet[:SCALE].view(np.float32)[0]
    spectrum[index] += parts.view(np.complex64)
    return True
