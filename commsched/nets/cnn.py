"""A small convolutional net for the digits: `cnn:CHANNELS`."""

from commsched.nets import NETS
from commsched.nets.base import Chain, Layer, Net
from commsched.nets.convolution import Convolution
from commsched.nets.dense import Linear, Relu, Shape
from commsched.nets.sizes import sizes

SIDE, CLASSES = 8, 10


@NETS.family("cnn:16")
def cnn(parameters: list[str]) -> Net:
    """Read CHANNELS, those of the first of three convolutions; the last two halve the image."""
    (width,) = sizes(parameters, {"the channels": (16, 512)})
    plan = ((1, width, 1), (width, 2 * width, 2), (2 * width, 4 * width, 2))
    layers: list[Layer] = []
    for i, (inputs, outputs, stride) in enumerate(plan):
        name = f"convolution{i}"
        parts: list[Layer] = [Shape("image", (SIDE, SIDE, 1))] if i == 0 else []
        parts += [Convolution(name, inputs, outputs, stride=stride), Relu(f"{name}.relu")]
        layers.append(Chain(name, parts))
    flat = (SIDE // 4) ** 2 * 4 * width
    ends = [Shape("flat", (flat,)), Linear("output", flat, CLASSES)]
    return Net(f"cnn:{width}", "digits", (*layers, Chain("output", ends)))
