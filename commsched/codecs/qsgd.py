"""Quantised SGD: `qsgd:BITS`, even levels up to the largest magnitude, rounded at random."""

from commsched.coding import parameters as read
from commsched.coding.blockwise import EvenLevels
from commsched.coding.registry import CODECS


class Qsgd(EvenLevels):
    """2**(BITS - 1) - 1 levels of either sign for blocks of 512 values, without bias.

    The scale is the largest magnitude, as in the paper's experiments, not the Euclidean norm of
    its theorems: then the error of a value is below one level, and feedback around a selection
    converges. Codes have a fixed width: no Elias code.
    Source: Alistarh et al., "QSGD", NeurIPS 2017, sections 3 and 5 (buckets of 512).
    """

    standard = "qsgd:4"
    encode_traffic = 14.0
    add_traffic = 30.0
    decode_traffic = 6.0

    def __init__(self, width: int) -> None:
        self.name = f"qsgd:{width}"
        self.bits = width
        self.levels = 2 ** (width - 1) - 1


@CODECS.family(Qsgd.standard)
def qsgd(parameters: list[str]) -> Qsgd:
    """Read BITS."""
    read.at_most(parameters, 1)
    return Qsgd(read.whole(parameters[0], "the bits of a value", 2, 8))
