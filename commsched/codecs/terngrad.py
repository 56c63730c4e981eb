"""Ternary gradients: -1, 0 or 1 times the largest magnitude of a block, rounded at random."""

from commsched.coding.blockwise import EvenLevels
from commsched.coding.registry import CODECS


class TernGrad(EvenLevels):
    """Two bits per value and a scale for blocks of 2048, without bias.

    Blocks replace the paper's layers; its clipping is left out, because it adds a bias.
    Source: Wen et al., "TernGrad", NeurIPS 2017.
    """

    name = standard = "terngrad"
    block = 2048
    bits = 2
    levels = 1
    encode_traffic = 10.0
    add_traffic = 60.0
    decode_traffic = 6.0


CODECS.add("terngrad")(TernGrad())
