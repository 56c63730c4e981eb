"""A multi-layer perceptron for the digits: `mlp:WIDTH:DEPTH`."""

from commsched.nets import NETS
from commsched.nets.base import Net
from commsched.nets.dense import Linear, hidden
from commsched.nets.sizes import sizes

PIXELS, CLASSES = 64, 10


@NETS.family("mlp:64:2")
def mlp(parameters: list[str]) -> Net:
    """Read WIDTH and DEPTH, the number of hidden layers."""
    width, depth = sizes(parameters, {"the width": (64, 4096), "the depth": (2, 64)})
    inputs = [PIXELS, *[width] * (depth - 1)]
    layers = [hidden(f"hidden{i}", size, width) for i, size in enumerate(inputs)]
    return Net(f"mlp:{width}:{depth}", "digits", (*layers, Linear("output", width, CLASSES)))
