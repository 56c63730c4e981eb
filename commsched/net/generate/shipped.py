"""Writes models/nets: `python -m commsched.net.generate.shipped`."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from commsched import shipped
from commsched.net import file
from commsched.net.generate import (
    convolutional,
    mixture,
    profiled,
    published,
    transformer,
    work,
)
from commsched.net.generate.throughputs import published as published_rates
from commsched.net.graph import Net
from commsched.net.measured import Measured

PROFILES = Path(__file__).resolve().parents[3] / "traces" / "backward_profiles_v100.json"

GPT_SIZES = {  # layers, hidden, heads
    "gpt3-1.3b": (24, 2048, 16),
    "gpt3-2.7b": (32, 2560, 32),
    "gpt3-6.7b": (32, 4096, 32),
    "gpt3-13b": (40, 5120, 40),
    "gpt3-175b": (96, 12288, 96),
}

IMAGES = "batch: 32 images, Espresso, EuroSys 2023, table 4"
PROFILED: dict[str, tuple[str, profiled.Shapes, int, str]] = {
    # our name: name in the profile, shapes, batch, where the batch comes from
    "vgg16": ("vgg16", profiled.vgg_shapes(), 32, IMAGES),
    "resnet50": (
        "resnet50",
        profiled.resnet_shapes(),
        0,
        "batch: not stated; the default of the repository's image script is 32",
    ),
    "resnet101": ("resnet101", profiled.resnet_shapes(), 32, IMAGES),
    "gpt2": (
        "gpt2",
        profiled.GPT2_SHAPES,
        4,
        "batch: 4 per GPU in the repository's gpt-2 script; assumption: sequences of 1,024 tokens",
    ),
    "bert-base": (
        "bert",
        profiled.BERT_SHAPES,
        8,
        "batch: 8 per GPU in the repository's BERT script, 1024 tokens in Espresso, EuroSys 2023,"
        " table 4",
    ),
    "lstm": (
        "LSTM",
        profiled.LSTM_SHAPES,
        80,
        "batch: 80 sequences of 70 steps, the defaults of the repository's lstm script",
    ),
}
V100 = (
    "device: V100 of 32 GB (README of the repository zhuangwang93/Espresso); precision: its scripts"
    " train with FP32; peaks and bandwidth: NVIDIA V100 data sheet; efficiency: 39 Tflop/s on one"
    " V100 (Shoeybi et al., 'Megatron-LM', 2019)"
)


def measured(net: str, batch: int, where: str) -> Measured:
    """Return the device, batch and precision of a net's profile."""
    return Measured(
        device="NVIDIA V100-SXM2-32GB",
        flops=125e12,
        float32=15.7e12,
        bandwidth=900e9,
        efficiency=0.31,
        precision="float32",
        batch=batch,
        source=f"{V100}; {where}",
        throughputs=published_rates(net),
    )


def with_work(net: Net) -> Net:
    """Add flops and memory traffic to a profiled net."""
    if net.name == "lstm":
        return work.recurrent(net)
    if net.name == "bert-base":
        tokens = work.BERT_POSITIONS, work.BERT_SEQUENCE
        return work.transformer(net, *tokens, "self.value", "intermediate.dense_act")
    if net.name == "gpt2":
        tokens = work.GPT2_POSITIONS, work.GPT2_SEQUENCE
        return work.transformer(net, *tokens, "attn.c_attn", "mlp.c_fc")
    return work.convolutional(net, work.vgg_sizes() if net.name == "vgg16" else work.resnet_sizes())


def shipped_nets() -> Iterator[Net]:
    """Yield every shipped net."""
    profile = profiled.read(PROFILES)
    note = (
        f"{profile.source}; backward seconds of a layer are the sum of its tensors' gaps, what runs"
        " before the first gradient is not in the profile; forward estimated as"
        f" {profiled.FORWARD_SHARE} of backward (1:2 in flops); layers chained in the profile's"
        " order, also where the net branches; batch not stated: batch 1 stands for one step;"
        f" activations not measured, 0; gradients taken as dense; {work.NOTE}"
    )
    for name, (theirs, shapes, batch, where) in PROFILED.items():
        net = profiled.graph(name, profile.models[theirs], shapes, note)
        yield replace(with_work(net), measured=measured(name, batch, where))
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
    yield from mixture.mixtures()
    yield from (published.alexnet(), published.lm1b(), published.deepfm(), published.nmt())
    yield from (convolutional.vgg19(), convolutional.wide_resnet101())
    yield from (convolutional.resnet32(), convolutional.inception_v4())


def main(folder: Path) -> None:
    """Write every shipped net into `folder`."""
    for net in shipped_nets():
        file.write(folder / f"{net.name}.json", net)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else shipped.folder("nets"))
