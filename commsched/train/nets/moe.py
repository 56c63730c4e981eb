"""A small GPT over bytes whose second block has experts: `moe:WIDTH:EXPERTS:HEADS:TOP`."""

from commsched.errors import CommschedError
from commsched.net.experts import CAPACITY
from commsched.train.layers.attention import LayerNorm
from commsched.train.layers.dense import Linear
from commsched.train.layers.layer import LayerChain, Residual, TrainableNet
from commsched.train.layers.mixture import Mixture
from commsched.train.nets.gpt import BYTES, LENGTH, block, embedding
from commsched.train.registry import NETS, sizes

GAIN = 0.5  # 1 / sqrt(2 blocks), see `gpt`


@NETS.family("moe:32:4:2:1")
def moe(parameters: list[str]) -> TrainableNet:
    """Read WIDTH, EXPERTS, HEADS, and TOP, the number of experts for a byte.

    The net has two blocks of `gpt`; the perceptron of the second one is a mixture of experts of
    equal size (Lepikhin et al., "GShard", ICLR 2021: every other layer).
    """
    known = {
        "the width": (1, 32, 4096),
        "the experts": (1, 4, 4096),
        "the heads": (1, 2, 128),
        "the choices of a byte": (1, 1, 4096),
    }
    width, experts, heads, top = sizes(parameters, known)
    if width % heads:
        raise CommschedError(f"the width must be a multiple of the heads, got {width} and {heads}")
    if top > experts:
        raise CommschedError(f"a byte has at most {experts} experts to choose, got {top}")
    inner = "block1.experts"
    mixture = Mixture(inner, width, 4 * width, experts, top, CAPACITY, GAIN)
    layers = (
        embedding(width),
        *block("block0", width, heads, GAIN),
        block("block1", width, heads, GAIN)[0],
        Residual(inner, [LayerNorm(f"{inner}.norm", width), mixture]),
        LayerChain("head", [LayerNorm("head.norm", width), Linear("head.scores", width, BYTES)]),
    )
    name = f"moe:{width}:{experts}:{heads}:{top}"
    return TrainableNet(name, f"bytes:{LENGTH}", layers)
