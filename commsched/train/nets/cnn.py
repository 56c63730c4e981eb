"""A small convolutional net for the digits: `cnn:CHANNELS`."""

from commsched.train.layers.convolution import Convolution
from commsched.train.layers.dense import Linear, Relu, Reshape
from commsched.train.layers.layer import LayerChain, TrainableLayer, TrainableNet
from commsched.train.registry import NETS, sizes

SIDE, CLASSES = 8, 10


@NETS.family("cnn:16")
def cnn(parameters: list[str]) -> TrainableNet:
    """Read CHANNELS of the first of three convolutions; the last two halve the image."""
    (width,) = sizes(parameters, {"the channels": (1, 16, 512)})
    plan = ((1, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2))
    layers: list[TrainableLayer] = []
    for i, (inputs, outputs, stride) in enumerate(plan):
        name = f"convolution{i}"
        parts: list[TrainableLayer] = [Reshape("image", (SIDE, SIDE, 1))] if i == 0 else []
        parts += [Convolution(name, inputs, outputs, stride=stride), Relu(f"{name}.relu")]
        layers.append(LayerChain(name, parts))
    flat = (SIDE // 4) ** 2 * 4 * width
    ends = [Reshape("flat", (flat,)), Linear("output", flat, CLASSES)]
    return TrainableNet(f"cnn:{width}", "digits", (*layers, LayerChain("output", ends)))
