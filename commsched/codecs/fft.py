"""The largest bins of a gradient's spectrum: `fft:SHARE[:forget]`, SHARE of the bins is kept."""

import numpy as np

from commsched.codecs import CODECS
from commsched.codecs import parameters as read
from commsched.codecs.base import Array, Codec, Floats, Ints, State
from commsched.errors import CommschedError
from commsched.kernels import bits, half, rangefloat, select
from commsched.kernels.lengths import fast_length
from commsched.kernels.modules import module_of
from commsched.plan.bucket import BucketSpec

WIDTH = 10  # bits of a real or imaginary part; source: Wang et al., HPDC 2020
# 5 bits of mantissa leave 4 for the exponent: parts down to 1.6e-5 of the largest one.
FORMAT = rangefloat.up_to(WIDTH, 5, 1.0)
SCALE = 4  # B before the bitmap: the largest part, float32


class Fft(Codec):
    """Round to fp16, transform, keep the bins of largest magnitude, write parts in 10 bits.

    Zeros fill the run up to a length whose transform is fast. A packet is the largest part, a
    bitmap of the kept bins, and their real and imaginary parts. Spectra are summed, and the sum
    transformed back once. The paper has no error feedback: that is `forget`; here it is on. Better
    than top-k in L2 for correlated gradients only.
    Source: Wang et al., "FFT-based gradient sparsification for the distributed training of deep
    neural networks", HPDC 2020, arXiv 1811.08596; its theta = 0.85 is the share dropped.
    """

    standard = "fft:0.15"
    lossless = False
    addable = False
    fixed = True
    feedback = True
    encode_traffic = 110.0
    add_traffic = 60.0
    decode_traffic = 60.0
    feedback_traffic = 70.0

    def __init__(self, share: float, forget: bool = False) -> None:
        self.name = f"fft:{read.written(share)}" + (f":{read.FORGET}" if forget else "")
        self.feedback = not forget
        self._share = share

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        module, length = module_of(values), fast_length(len(values))
        rounded = half.from_fp16(half.to_fp16(values))
        packet = module.zeros(self._bytes(len(values)), np.uint8)
        if not len(values):
            return packet
        with np.errstate(over="ignore", invalid="ignore"):
            spectrum = module.fft.rfft(rounded, length).astype(np.complex64, copy=False)
            size = module.abs(spectrum)
        largest = module.max(size)
        packet[:SCALE].view(np.float32)[0] = largest
        if not np.isfinite(largest):
            packet[:SCALE].view(np.float32)[0] = np.nan
            return packet
        kept = self._strongest(size)
        hit = module.zeros(len(size), np.uint8)
        hit[kept] = 1
        bitmap = bits.pack_flags(hit)
        packet[SCALE : SCALE + len(bitmap)] = bitmap
        unit = np.float32(1) / largest if largest > 0 else np.float32(0)
        parts = (spectrum[kept] * unit).view(np.float32)
        packet[SCALE + len(bitmap) :] = bits.pack(FORMAT.encode(parts), WIDTH)
        return packet

    def decode(self, packet: Array, out: Array) -> None:
        self.combine([packet], out)

    def add(self, packet: Array, out: Array) -> None:
        values = np.empty_like(out)
        self.decode(packet, values)
        out += values

    def combine(self, packets: list[Array], out: Array) -> None:
        module, length = module_of(out), fast_length(len(out))
        total = module.zeros(length // 2 + 1, np.complex64)
        for packet in packets:
            self._add_spectrum(packet.view(np.uint8), len(out), total)
        if len(out):
            out[:] = module.fft.irfft(total, length)[: len(out)]

    def _add_spectrum(self, packet: Array, numel: int, total: Array) -> None:
        """Add the bins of a packet to the spectrum `total`, (bins,) complex64."""
        bins = len(total)
        kept = self._kept(bins)
        wrong = CommschedError(
            f"a packet of {len(packet)} B is no spectrum of {numel} values coded {self.name!r}"
        )
        if len(packet) != self._bytes(numel):
            raise wrong
        if not numel:
            return
        scale = packet[:SCALE].view(np.float32)[0]
        if not np.isfinite(scale):
            total += np.float32(np.nan)
            return
        end = SCALE + bits.packed_bytes(bins)
        index = np.flatnonzero(bits.unpack_flags(packet[SCALE:end], bins))
        if len(index) != kept:
            raise wrong
        parts = FORMAT.decode(bits.unpack(packet[end:], 2 * kept, WIDTH)) * scale
        total[index] += parts.view(np.complex64)

    def _strongest(self, size: Array) -> Array:
        """Exactly as many bins as are kept, ascending, zeros among them if need be."""
        module, count = module_of(size), self._kept(len(size))
        kept = select.largest(size, count)
        if len(kept) < count:
            zero = module.flatnonzero(size == 0)[: count - len(kept)]
            kept = module.sort(module.concatenate([kept, zero]))
        return kept

    def _kept(self, bins: int) -> int:
        return int(np.ceil(self._share * bins))

    def _bytes(self, numel: int) -> int:
        if not numel:
            return 0
        bins = fast_length(numel) // 2 + 1
        return SCALE + bits.packed_bytes(bins) + bits.packed_bytes(2 * self._kept(bins), WIDTH)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.array([self._bytes(int(n)) for n in np.atleast_1d(stop - start)], np.float64)

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(self._bytes(values), np.uint8)


@CODECS.family(Fft.standard)
def fft(parameters: list[str]) -> Fft:
    """Read SHARE, and whether what is not sent is forgotten."""
    parameters, forget = read.forgets(parameters)
    read.at_most(parameters, 1)
    return Fft(read.share(parameters[0]), forget)
