"""A random share of the elements, equal on all ranks: `randomk:SHARE[:unbiased]`."""

import numpy as np

from commsched.arrays import Array, Floats, Ints
from commsched.coding import parameters as read
from commsched.coding.codec import Codec, State
from commsched.coding.packet import header
from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.kernels.accumulate import ADD, REPLACE, put_at
from commsched.kernels.finite_check import finite
from commsched.kernels.modules import module_of
from commsched.kernels.random import hashes, run_key
from commsched.net.bucket import BucketSpec

HEADER = 24  # B: tag, key of the random numbers, first element; little-endian 64-bit words
TAG = 0x00_4B_4E_52  # "RNK"
BROKEN = 0x01_4B_4E_52  # the gradient is not finite: the run is NaN, and no value follows


class RandomK(Codec):
    """One element of each stretch of 1/SHARE, drawn by seed, step and name: no indices are sent.

    By default values are sent unchanged, sums of packets are encoded without loss, and error
    feedback keeps the other values. `unbiased` multiplies each value by the length of its
    stretch and needs no feedback, but its packets cannot be added. Good as a cheap baseline.
    Source: Stich, Cordonnier & Jaggi, "Sparsified SGD with memory", NeurIPS 2018.
    """

    standard = "randomk:0.01"
    lossless = False
    fixed = False
    sums_exactly = True
    encode_traffic = 1.0  # a check for NaN
    add_traffic = 6.0  # draw the indices, read the value, read and write the sum
    decode_traffic = 1.0  # zero the run; the scatter is small in comparison

    def __init__(self, share: float, unbiased: bool) -> None:
        self.name = f"randomk:{read.written(share)}" + (":unbiased" if unbiased else "")
        self.unbiased = self.may_overflow = unbiased
        self.addable = self.feedback = not unbiased
        self._share = share

    def encode(self, values: Array, state: State, start: int = 0) -> Array:
        key = run_key(state, 0, common=True)
        words = [TAG if finite(values) else BROKEN, key, start]
        head = header(words, values)
        if words[0] == BROKEN:
            return head
        index, scale = self._drawn(key, start, values)
        sent = values[index]
        if self.unbiased:
            with np.errstate(over="ignore"):
                sent *= scale
        return module_of(values).concatenate([head, sent.view(np.uint8)])

    def decode(self, packet: Array, out: Array) -> None:
        index, values = self._open(packet, out)
        out.fill(0)
        put_at(index, values, out, REPLACE)

    def add(self, packet: Array, out: Array) -> None:
        index, values = self._open(packet, out)
        put_at(index, values, out, ADD)

    def nbytes(self, spec: BucketSpec, start: Ints, stop: Ints, merged: int | Ints) -> Floats:
        return np.asarray(HEADER + 4.0 * self._share * (stop - start))

    def _drawn(self, key: int, start: int, run: Array) -> tuple[Array, Array]:
        """Draw indices in a run; return them, ascending, and their stretches' lengths, float32."""
        first = max(int(start * self._share) - 1, 0)
        last = int((start + len(run)) * self._share) + 2
        edges = np.ceil(np.arange(first, last + 1) / self._share).astype(np.int64)
        length = np.diff(edges)
        drawn = hashes(key, np.arange(first, last)).astype(np.int64)
        index = edges[:-1] + ((drawn * length) >> 32) - start
        here = (index >= 0) & (index < len(run))
        module = module_of(run)
        return module.asarray(index[here]), module.asarray(length[here].astype(np.float32))

    def _open(self, packet: Array, run: Array) -> tuple[Array, Array]:
        """Return the indices in the run and the values, both (k,)."""
        whole = len(packet) >= HEADER
        tag, key, start = packet[:HEADER].view(np.uint64).tolist() if whole else (0, 0, 0)
        if tag == BROKEN and len(packet) == HEADER:
            return slice(None), np.float32(np.nan)
        wrong = CommschedError(f"a packet of {len(packet)} B holds no random share {self.name!r}")
        if tag != TAG or start >= 2**48:
            raise wrong
        index, _ = self._drawn(key, start, run)
        if len(packet) != HEADER + 4 * len(index):
            raise wrong
        return index, packet[HEADER:].view(np.float32)


@CODECS.family(RandomK.standard)
def randomk(parameters: list[str]) -> RandomK:
    """Read SHARE, and whether the values are scaled."""
    read.at_most(parameters, 2)
    scaled = [read.choice(word, "the variant", ("unbiased",)) for word in parameters[1:]]
    return RandomK(read.share(parameters[0]), bool(scaled))
