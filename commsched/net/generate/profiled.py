"""Nets from per-tensor profiles of the backward pass: tensors of a module become one layer."""

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path

import msgspec

from commsched import files
from commsched.net.graph import Layer, Net, Tensor

FORWARD_SHARE = 0.5  # forward seconds / backward seconds where only the backward is measured

Shapes = Mapping[str, tuple[int, ...]]  # pattern of a tensor's full name -> shape


class Gap(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A gradient and the microseconds since the one before it, backward order."""

    name: str
    numel: int
    gap_us: float


class Profile(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The profile file; traces/README.md explains it."""

    source: str
    unit: str
    models: dict[str, list[Gap]]


def read(path: Path) -> Profile:
    """Read a profile file."""
    return files.read(path, Profile)


def graph(name: str, gaps: list[Gap], shapes: Shapes, source: str) -> Net:
    """Chain the modules (a tensor's name up to its last dot), first of the forward pass first.

    A tensor without a pattern in `shapes` is flat.
    """
    modules: dict[str, list[Gap]] = {}
    for gap in reversed(gaps):
        modules.setdefault(gap.name.rpartition(".")[0], []).append(gap)
    layers: list[Layer] = []
    for module, members in modules.items():
        backward = sum(gap.gap_us for gap in members) * 1e-6
        layers.append(
            Layer(
                name=module,
                after=(layers[-1].name,) if layers else (),
                tensors=tuple(Tensor(name=g.name, shape=_shape(g, shapes)) for g in members),
                forward=backward * FORWARD_SHARE,
                backward=backward,
            )
        )
    return Net(name=name, layers=tuple(layers), source=source)


def _shape(gap: Gap, shapes: Shapes) -> tuple[int, ...]:
    for pattern, shape in shapes.items():
        if re.fullmatch(pattern, gap.name):
            assert prod(shape) == gap.numel, f"{gap.name} has {gap.numel} elements, not {shape}"
            return shape
    return (gap.numel,)


def vgg_shapes() -> Shapes:
    """VGG-16 (Simonyan & Zisserman, ICLR 2015, configuration D), names as in torchvision."""
    channels = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
    places = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
    inputs = (3, *channels[:-1])
    shapes = {
        rf"features\.{place}\.weight": (out, into, 3, 3)
        for place, out, into in zip(places, channels, inputs, strict=True)
    }
    dense = {0: (4096, 25088), 3: (4096, 4096), 6: (1000, 4096)}
    return {**shapes, **{rf"classifier\.{i}\.weight": shape for i, shape in dense.items()}}


def resnet_shapes() -> Shapes:
    """ResNet with bottlenecks (He et al., CVPR 2016), names as in torchvision."""
    shapes: dict[str, tuple[int, ...]] = {
        r"conv1\.weight": (64, 3, 7, 7),
        r"fc\.weight": (1000, 2048),
    }
    for stage in range(1, 5):
        width = 32 * 2**stage
        before = 64 if stage == 1 else 2 * width
        at = rf"layer{stage}\."
        shapes[at + r"0\.conv1\.weight"] = (width, before, 1, 1)
        shapes[at + r"0\.downsample\.0\.weight"] = (4 * width, before, 1, 1)
        shapes[at + r"[0-9]+\.conv1\.weight"] = (width, 4 * width, 1, 1)
        shapes[at + r"[0-9]+\.conv2\.weight"] = (width, width, 3, 3)
        shapes[at + r"[0-9]+\.conv3\.weight"] = (4 * width, width, 1, 1)
    return shapes


GPT2_SHAPES: Shapes = {  # Radford et al., 2019; (inputs, outputs), names as in transformers
    r".*\.attn\.c_attn\.weight": (768, 2304),
    r".*\.attn\.c_proj\.weight": (768, 768),
    r".*\.mlp\.c_fc\.weight": (768, 3072),
    r".*\.mlp\.c_proj\.weight": (3072, 768),
    r".*\.wte\.weight": (50257, 768),
    r".*\.wpe\.weight": (1024, 768),
}

BERT_SHAPES: Shapes = {  # Devlin et al., NAACL 2019; (outputs, inputs), vocabulary padded to 30,528
    r".*\.attention\..*\.(dense|query|key|value)\.weight": (768, 768),
    r".*\.self\.(query|key|value)\.weight": (768, 768),
    r".*\.intermediate\.dense_act\.weight": (3072, 768),
    r".*\.layer\.[0-9]+\.output\.dense\.weight": (768, 3072),
    r".*\.word_embeddings\.weight": (30528, 768),
    r".*\.position_embeddings\.weight": (512, 768),
    r".*\.token_type_embeddings\.weight": (2, 768),
    r"qa_outputs\.weight": (2, 768),
}

LSTM_SHAPES: Shapes = {  # two layers of 1,500 units, vocabulary of WikiText-2, tied output head
    r"rnns\.[01]\.weight_[ih]h_l0": (6000, 1500),
    r"encoder\.weight": (33278, 1500),
}
