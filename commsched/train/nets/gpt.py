"""A small GPT over the bytes of a text: `gpt:WIDTH:BLOCKS:HEADS[:tied][:sources]`."""

from math import sqrt

from commsched.coding import parameters as read
from commsched.errors import CommschedError
from commsched.train.layers.attention import Attention, LayerNorm
from commsched.train.layers.dense import Gelu, Linear
from commsched.train.layers.embedding import Embedding, Positions, Tied
from commsched.train.layers.layer import Cut, LayerChain, Residual, TrainableLayer, TrainableNet
from commsched.train.registry import NETS, sizes

BYTES, LENGTH = 256, 64
ENDS = ("tied", "sources", "tied:sources")
DEVIATION = 0.1  # of the tables' initial values


def block(name: str, width: int, heads: int, gain: float) -> list[TrainableLayer]:
    """Make attention and a perceptron of four times the width, each added to a residual stream."""
    attention, inner = f"{name}.attention", f"{name}.perceptron"
    return [
        Residual(
            attention,
            [LayerNorm(f"{attention}.norm", width), Attention(attention, width, heads, gain)],
        ),
        Residual(
            inner,
            [
                LayerNorm(f"{inner}.norm", width),
                Linear(f"{inner}.up", width, 4 * width, columns=Cut(axis=1, parts=4 * width)),
                Gelu(f"{inner}.gelu"),
                Linear(f"{inner}.down", 4 * width, width, gain, rows=Cut(axis=0, parts=4 * width)),
            ],
        ),
    ]


def embedding(width: int) -> LayerChain:
    """Make the embeddings of bytes and positions."""
    parts = [
        Embedding("embedding.bytes", BYTES, width, DEVIATION),
        Positions("embedding.places", LENGTH, width, DEVIATION),
    ]
    return LayerChain("embedding", parts)


@NETS.family("gpt:64:2:4")
def gpt(parameters: list[str]) -> TrainableNet:
    """Read WIDTH, BLOCKS, HEADS, `tied` if the head is the table of the bytes, and `sources`.

    The text is the manual, or with `sources` the source files of the standard library.
    Norms come before attention and perceptron (Radford et al., 2019); as in that paper, initial
    weights of additions to the residual stream are smaller by sqrt(2 BLOCKS).
    """
    chosen = parameters[3:]
    if chosen:
        read.choice(":".join(chosen), "what follows the sizes", ENDS)
    tied, text = "tied" in chosen, "sources" if "sources" in chosen else "bytes"
    known = {"the width": (1, 64, 4096), "the blocks": (1, 2, 100), "the heads": (1, 4, 128)}
    width, blocks, heads = sizes(parameters[:3], known)
    if width % heads:
        raise CommschedError(f"the width must be a multiple of the heads, got {width} and {heads}")
    layers: list[TrainableLayer] = [embedding(width)]
    for i in range(blocks):
        layers += block(f"block{i}", width, heads, 1 / sqrt(2 * blocks))
    head = Tied("head", "embedding.bytes.weight") if tied else Linear("head.scores", width, BYTES)
    layers.append(LayerChain("head", [LayerNorm("head.norm", width), head]))
    name = ":".join([f"gpt:{width}:{blocks}:{heads}", *chosen])
    return TrainableNet(name, f"{text}:{LENGTH}", tuple(layers))
