"""A multi-layer perceptron for the digits: `mlp:WIDTH:DEPTH`."""

from commsched.train.layers.dense import Linear, hidden
from commsched.train.layers.layer import TrainableNet
from commsched.train.registry import NETS, sizes

PIXELS, CLASSES = 64, 10


@NETS.family("mlp:64:2")
def mlp(parameters: list[str]) -> TrainableNet:
    """Read WIDTH and DEPTH, the number of hidden layers."""
    width, depth = sizes(parameters, {"the width": (1, 64, 4096), "the depth": (1, 2, 64)})
    inputs = [PIXELS, *[width] * (depth - 1)]
    layers = [hidden(f"hidden{i}", size, width) for i, size in enumerate(inputs)]
    return TrainableNet(
        f"mlp:{width}:{depth}", "digits", (*layers, Linear("output", width, CLASSES))
    )
