"""The largest bins of a gradient's spectrum: `fft:SHARE[:forget]`, SHARE of the bins are kept."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import Delivering, State
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.kernels import bits, rangefloat, spectrum
from commsched.kernels.accumulate import REPLACE
from commsched.kernels.modules import module_of
from commsched.kernels.spectrum import SCALE
from commsched.net.bucket import BucketSpec

WIDTH = 10  # bits of a real or imaginary part; source: Wang et al., HPDC 2020
# 5 bits of mantissa leave 4 for the exponent: parts down to 1.6e-5 of the largest one.
FORMAT = rangefloat.up_to(WIDTH, 5, 1.0)


class Fft(Delivering):
    """Round to fp16, transform, keep the bins of largest magnitude, write parts in 10 bits.

    Each piece of 8192 values is transformed alone. The rest is padded with zeros to a length whose
    transform is fast. Bins are chosen among all pieces. The paper transforms a gradient as a whole,
    which needs twice its memory and, beyond what a cache holds, several passes; for gradients
    correlated over ten values both lose equally much, to 0.1 % of the norm. A packet is the largest
    magnitude, a bitmap of the kept bins, and their real and imaginary parts. Spectra are summed,
    and the sum transformed back once. The paper has no error feedback, like `forget`; here feedback
    is on. Better than top-k in L2 for correlated gradients only.
    Source: Wang et al., "FFT-based gradient sparsification for the distributed training of deep
    neural networks", HPDC 2020, arXiv 1811.08596; its theta = 0.85 is the share dropped.
    """

    standard = "fft:0.15"
    lossless = False
    addable = False
    fixed = True
    feedback = True
    encode_traffic = 30.0
    add_traffic = 20.0
    decode_traffic = 20.0
    feedback_traffic = 24.0

    def __init__(self, share: float, forget: bool = False) -> None:
        self.name = f"fft:{read.written(share)}" + (f":{read.FORGET}" if forget else "")
        self.feedback = not forget
        self._share = share

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        return self._written(values, None)

    def encode_kept(self, values: Array, lost: Array, state: State) -> tuple[Array, bool]:
        packet = self._written(values, lost)
        return packet, not len(packet) or bool(np.isfinite(packet[:SCALE].view(np.float32)[0]))

    def _written(self, values: Array, lost: Array | None) -> Array:
        """Return the packet of values; `lost` is added to them in place."""
        packet = module_of(values).empty(self._bytes(len(values)), np.uint8)
        if not len(values):
            return packet
        with np.errstate(over="ignore", invalid="ignore"):
            bins = spectrum.forward(values, lost)
            scale, bitmap, codes = spectrum.strongest(bins, self._kept(len(bins)), FORMAT)
        end = SCALE + len(bitmap)
        packet[:SCALE] = scale.view(np.uint8)
        packet[SCALE:end], packet[end:] = bitmap, bits.pack(codes, WIDTH)
        if not np.isfinite(scale[0]):
            packet.fill(0)
            packet[:SCALE].view(np.float32)[0] = np.nan
        return packet

    def deliver(self, packet: Array, out: Array, way: int) -> None:
        self._deliver_sum([packet], out, way)

    def combine(self, packets: list[Array], out: Array) -> None:
        self._deliver_sum(packets, out, REPLACE)

    def _deliver_sum(self, packets: list[Array], out: Array, way: int) -> None:
        """Write the sum of packets to `out`, or add or subtract it, as `way` says."""
        numel = len(out)
        packets = [packet.view(np.uint8) for packet in packets]
        wrong = [packet for packet in packets if len(packet) != self._bytes(numel)]
        if not wrong and numel:
            if not all(np.isfinite(packet[:SCALE].view(np.float32)[0]) for packet in packets):
                out.fill(np.nan)
                return
            kept = self._kept(spectrum.bins_of(numel))
            if not spectrum.deliver(packets, kept, FORMAT, out, way):
                wrong = packets
        if wrong:
            what = f"no spectrum of {numel} values coded {self.name!r}"
            raise CommschedError(f"a packet of {len(wrong[0])} B is {what}")

    def _kept(self, bins: int) -> int:
        return int(np.ceil(self._share * bins))

    def _bytes(self, numel: int) -> int:
        if not numel:
            return 0
        bins = spectrum.bins_of(numel)
        return SCALE + bits.packed_bytes(bins) + bits.packed_bytes(2 * self._kept(bins), WIDTH)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.array([self._bytes(int(n)) for n in np.atleast_1d(stop - start)], np.float64)

    def packet(self, values: int, nbytes: int | None = None) -> Array:
        return np.empty(self._bytes(values), np.uint8)


@CODECS.family(Fft.standard)
def fft(parameters: list[str]) -> Fft:
    """Read SHARE, and whether unsent values are forgotten."""
    parameters, forget = read.forgets(parameters)
    read.at_most(parameters, 1)
    return Fft(read.share(parameters[0]), forget)
