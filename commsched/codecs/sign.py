"""Signs and the mean magnitude of a block: `sign:vote` (majority) or `sign:sum`."""

import numpy as np

from commsched.arrays import Array
from commsched.coding import parameters as read
from commsched.coding.blockwise import Blockwise
from commsched.coding.registry import CODECS
from commsched.kernels import bits
from commsched.kernels.quantise import EvenSteps


class Sign(Blockwise):
    """One bit per value, one scale per block of 2048: the mean magnitude. Zero counts as positive.

    `sum` adds the scaled signs of all ranks, with error feedback (Karimireddy et al., "Error
    feedback fixes SignSGD", ICML 2019). `vote` gives every element the sign of the majority, zero
    in a tie, and the sum of the scales, so that it stands for a sum of gradients; a rank cannot
    know its own loss in a vote, so `vote` has no feedback (Bernstein et al., "signSGD", ICML 2018).
    """

    standard = "sign:vote"
    block = 2048
    bits = 1
    encode_traffic = 5.0
    add_traffic = 100.0
    decode_traffic = 4.0

    def __init__(self, way: str) -> None:
        self.name = f"sign:{way}"
        self.votes = way == "vote"
        self.feedback = self.codes_values = not self.votes
        self.no_feedback = "a vote does not show a loss; use 'sign:sum'" if self.votes else ""

    def code(self, values: Array, steps: EvenSteps | None) -> tuple[Array, Array]:
        scale = np.abs(values).mean(axis=1, keepdims=True, dtype=np.float64)
        return np.where(np.isfinite(scale), scale, np.nan), values < 0

    def value(self, codes: Array, scales: Array, out: Array) -> None:
        np.multiply(codes, np.float32(-2), out=out)
        np.add(out, np.float32(1), out=out)
        np.multiply(out, scales, out=out)

    def combine(self, packets: list[Array], out: Array) -> None:
        if not self.votes:
            super().combine(packets, out)
            return
        views = [self._split(packet, len(out)) for packet in packets]
        scale = views[0][0].copy()
        for scales, _ in views[1:]:
            scale += scales
        for row, first, stop, width in self._pieces(len(out)):
            negative = sum(
                bits.unpack_flags(packed[first // 8 :], stop - first).astype(np.int32)
                for _, packed in views
            )
            part = out[first:stop].reshape(-1, width)
            np.sign(np.float32(len(views)) - 2 * negative.reshape(-1, width), out=part)
            part *= scale[row : row + len(part)]


@CODECS.family(Sign.standard)
def sign(parameters: list[str]) -> Sign:
    """Read the way."""
    read.at_most(parameters, 1)
    return Sign(read.choice(parameters[0], "the way", ("vote", "sum")))
