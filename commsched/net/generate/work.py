"""Flops and memory traffic of the layers of profiled nets, to scale their seconds by a roofline."""

import re
from collections.abc import Callable
from dataclasses import replace
from math import prod

from commsched.net.graph import Layer, Net

NOTE = (
    "flops and memory traffic from the architecture by commsched.net.generate.work, to scale the"
    " seconds to other devices: 2 flops per multiply and add, every operand of an unfused float32"
    " kernel moves once, backward twice the forward"
)
IMAGES = 32  # per GPU: Espresso, EuroSys 2023, table 4; the default of its ResNet script
BERT_POSITIONS, BERT_SEQUENCE = 1024, 128  # table 4: 1024 tokens; its script: batch 8
GPT2_POSITIONS, GPT2_SEQUENCE = 4096, 1024  # its script: 4 sequences; assumption: of 1,024 tokens
LSTM_POSITIONS, LSTM_STEPS = 80 * 70, 70  # its script: batch 80, 70 steps
FLOAT = 4.0  # B
NORM, ACTIVATION = 3, 2  # passes over the values: read twice and written; read and written

Work = tuple[float, float]  # flops, B


def convolutional(net: Net, sizes: dict[str, tuple[int, int]]) -> Net:
    """Add the work of a chain of images; sizes: pattern of a layer -> input and output side."""

    def work(layer: Layer) -> Work:
        sides = [at for pattern, at in sizes.items() if re.fullmatch(pattern, layer.name)]
        before, after = sides[0] if sides else (1, 1)
        shape = _weight(layer)
        out = shape[0] * after**2
        if len(shape) == 1:  # a normalisation and its rectifier
            return 0.0, FLOAT * IMAGES * out * (NORM + ACTIVATION)
        ends = shape[1] * before**2 + out * (1 + ACTIVATION * any(_is_bias(layer)))
        return 2.0 * IMAGES * prod(shape) * after**2, FLOAT * (prod(shape) + IMAGES * ends)

    return _with(net, work)


def transformer(net: Net, positions: int, sequence: int, attention: str, wide: str) -> Net:
    """Add the work of a transformer of 768 units and 12 heads.

    attention, wide: end of the layer that stands for the attention itself, and of the one with
    the activation behind it.
    """

    def work(layer: Layer) -> Work:
        shape = _weight(layer)
        width = 768 if len(shape) == 1 else sum(shape)
        if len(shape) == 1:
            return 0.0, FLOAT * positions * width * NORM
        if re.search(r"embeddings|\.w[tp]e$", layer.name):
            return 0.0, FLOAT * positions * 768 * 2
        flops = 2.0 * positions * prod(shape)
        nbytes = FLOAT * (prod(shape) + positions * width)
        if layer.name.endswith(attention):  # scores and sums; the scores move four times
            flops += 4.0 * positions * sequence * 768
            nbytes += FLOAT * (4 * 12 * positions * sequence + 4 * positions * 768)
        if layer.name.endswith(wide):
            nbytes += FLOAT * ACTIVATION * positions * max(shape)
        return flops, nbytes

    return _with(net, work)


def recurrent(net: Net) -> Net:
    """Add the work of an LSTM; its recurrent weights move once per time step."""

    def work(layer: Layer) -> Work:
        matrices = [t.numel for t in layer.tensors if len(t.shape) == 2]
        if not layer.name.startswith("rnns"):  # the embedding; the bias of the tied output
            return 0.0, FLOAT * LSTM_POSITIONS * 2 * 1500
        states = LSTM_POSITIONS * (2 * 6000 + 4 * 1500)
        moved = matrices[0] * LSTM_STEPS + matrices[1] + states
        return 2.0 * LSTM_POSITIONS * sum(matrices), FLOAT * moved

    return _with(net, work)


def resnet_sizes() -> dict[str, tuple[int, int]]:
    """Return the sides of a ResNet's feature maps: images of 224, strides in 3 x 3 convolutions."""
    sizes = {"conv1": (224, 112), "bn1": (112, 112), "fc": (1, 1)}
    for stage, side in enumerate((56, 28, 14, 7), 1):
        before = 56 if stage == 1 else 2 * side
        at = rf"layer{stage}\."
        sizes[at + r"0\.(conv1|bn1)"] = (before, before)
        sizes[at + r"0\.(conv2|downsample\.0)"] = (before, side)
        sizes[at + r"[0-9]+\..*"] = (side, side)
    return sizes


def vgg_sizes() -> dict[str, tuple[int, int]]:
    """Return the sides of the feature maps of VGG-16 on images of 224."""
    places = {0: 224, 2: 224, 5: 112, 7: 112, 10: 56, 12: 56, 14: 56}
    places |= {17: 28, 19: 28, 21: 28, 24: 14, 26: 14, 28: 14}
    return {rf"features\.{place}": (side, side) for place, side in places.items()}


def _weight(layer: Layer) -> tuple[int, ...]:
    """Return the shape of the largest tensor of a layer."""
    return max((t.shape for t in layer.tensors), key=prod)


def _is_bias(layer: Layer) -> list[bool]:
    return [t.name.endswith("bias") for t in layer.tensors]


def _with(net: Net, work: Callable[[Layer], Work]) -> Net:
    layers = []
    for layer in net.layers:
        flops, nbytes = work(layer)
        layers.append(
            replace(
                layer,
                forward_flops=flops,
                backward_flops=2 * flops,
                forward_bytes=nbytes,
                backward_bytes=2 * nbytes,
            )
        )
    return replace(net, layers=tuple(layers))
