"""Writes models/nets: `python -m commsched.net.generate.shipped`."""

import sys
from collections.abc import Iterator
from pathlib import Path

from commsched import shipped
from commsched.net import file
from commsched.net.generate import convolutional, profiled, published, transformer
from commsched.net.graph import Net

PROFILES = Path(__file__).resolve().parents[3] / "traces" / "backward_profiles_v100.json"

GPT_SIZES = {  # layers, hidden, heads
    "gpt3-1.3b": (24, 2048, 16),
    "gpt3-2.7b": (32, 2560, 32),
    "gpt3-6.7b": (32, 4096, 32),
    "gpt3-13b": (40, 5120, 40),
    "gpt3-175b": (96, 12288, 96),
}

PROFILED = {  # our name: name in the profile, shapes
    "vgg16": ("vgg16", profiled.vgg_shapes()),
    "resnet50": ("resnet50", profiled.resnet_shapes()),
    "resnet101": ("resnet101", profiled.resnet_shapes()),
    "gpt2": ("gpt2", profiled.GPT2_SHAPES),
    "bert-base": ("bert", profiled.BERT_SHAPES),
    "lstm": ("LSTM", profiled.LSTM_SHAPES),
}


def shipped_nets() -> Iterator[Net]:
    """Every shipped net."""
    profile = profiled.read(PROFILES)
    note = (
        f"{profile.source}; backward seconds of a layer are the sum of its tensors' gaps, what runs"
        " before the first gradient is not in the profile; forward estimated as"
        f" {profiled.FORWARD_SHARE} of backward (1:2 in flops); layers chained in the profile's"
        " order, also where the net branches; batch not stated: batch 1 stands for one step;"
        " activations not measured, 0; gradients taken as dense"
    )
    for name, (theirs, shapes) in PROFILED.items():
        yield profiled.graph(name, profile.models[theirs], shapes, note)
    for name, (layers, hidden, heads) in GPT_SIZES.items():
        yield transformer.gpt(
            name,
            layers=layers,
            hidden=hidden,
            heads=heads,
            sequence=2048,
            vocabulary=50257,
            batch=1,
        )
    yield from (published.alexnet(), published.lm1b(), published.deepfm(), published.nmt())
    yield from (convolutional.vgg19(), convolutional.wide_resnet101())
    yield from (convolutional.resnet32(), convolutional.inception_v4())


def main(folder: Path) -> None:
    """Write every shipped net into `folder`."""
    for net in shipped_nets():
        file.write(folder / f"{net.name}.json", net)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else shipped.folder("nets"))
