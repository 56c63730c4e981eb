"""Nets without a public profile; papers print their sizes, densities or layer times."""

from collections.abc import Sequence

from commsched.net.graph import Layer, Net, Tensor
from commsched.net.measured import Measured
from commsched.net.sparsity import Sparsity

FFT_PAPER = "Wang et al., 'FFT-based gradient sparsification', HPDC 2020, arXiv 1811.08596"
ZEN_PAPER = "Wang et al., 'Zen', OSDI 2025, arXiv 2309.13254"


def alexnet() -> Net:
    """AlexNet without grouped convolutions: 62.4 M parameters, 250 MB of gradients."""
    rows: Sequence[tuple[str, tuple[int, ...], float]] = (  # weight, ms forward and backward
        ("conv1", (96, 3, 11, 11), 16.8),
        ("conv2", (256, 96, 5, 5), 43.0),
        ("conv3", (384, 256, 3, 3), 16.8),
        ("conv4", (384, 384, 3, 3), 25.5),
        ("conv5", (256, 384, 3, 3), 18.3),
        ("fc6", (4096, 9216), 2.9),
        ("fc7", (4096, 4096), 1.26),
        ("fc8", (1000, 4096), 0.37),
    )
    layers: list[Layer] = []
    for name, shape, milliseconds in rows:
        layers.append(
            Layer(
                name=name,
                after=(layers[-1].name,) if layers else (),
                tensors=(
                    Tensor(name=f"{name}.weight", shape=shape),
                    Tensor(name=f"{name}.bias", shape=shape[:1]),
                ),
                forward=milliseconds * 1e-3 / 3,
                backward=milliseconds * 1e-3 * 2 / 3,
            )
        )
    source = (
        f"compute per layer on one P100 and gradient sizes from {FFT_PAPER}; shapes from"
        " Krizhevsky, Sutskever & Hinton, NIPS 2012, without groups, which gives the printed sizes;"
        " assumption: the printed compute is forward and backward together, split 1:2; batch and"
        " activations are not stated there: batch 1 stands for one step, activations are 0"
    )
    on = Measured(
        device="NVIDIA P100-PCIe-16GB",
        flops=18.7e12,
        float32=9.3e12,
        bandwidth=732e9,
        precision="float32",
        source=f"{FFT_PAPER}; peaks and bandwidth: NVIDIA P100 PCIe data sheet",
    )
    return Net(name="alexnet", layers=tuple(layers), source=source, measured=on)


def lm1b() -> Net:
    """Make the one-billion-word LSTM language model: 20 M dense, 406 M embedding, 1.13 % dense."""
    words = Sparsity(law="zipf", density=0.0113, rows=793_471)
    return _embedded(
        "lm1b",
        embedding=(793_471, 512),
        law=words,
        dense=(10_000_000,) * 2,
        batch=128,
        positions=20,
        note=(
            "the law of the rows is inferred: words follow Zipf's law with exponent 1; assumption:"
            " two equal dense layers, 128 sequences of 20 words per rank"
        ),
    )


def deepfm() -> Net:
    """DeepFM for click prediction: 68 M dense, 214 M embedding, 2.80 % dense."""
    categories = Sparsity(law="zipf", density=0.028, rows=13_375_000)
    return _embedded(
        "deepfm",
        embedding=(13_375_000, 16),
        law=categories,
        dense=(17_000_000,) * 4,
        batch=16_384,
        positions=1,
        note=(
            "assumption: rows of 16, hit after Zipf's law with exponent 1, four equal dense layers,"
            " 16,384 samples per rank (39 categories each must touch the 374,500 rows of the"
            " printed density)"
        ),
    )


def nmt() -> Net:
    """A translation model: 31 M dense, 112 M embedding, 2.47 % dense, 61.5 % after 128 ranks."""
    measured = Sparsity(law="curve", density=0.0247, curve=((1.0, 0.0247), (128.0, 0.615)))
    return _embedded(
        "nmt",
        embedding=(109_375, 1024),
        law=measured,
        dense=(7_750_000,) * 4,
        batch=128,
        positions=50,
        note=(
            "density after 128 ranks as printed, between them interpolated; assumption: rows of"
            " 1,024, four equal dense layers, 128 sentences of 50 words per rank"
        ),
    )


def _embedded(
    name: str,
    *,
    embedding: tuple[int, int],
    law: Sparsity,
    dense: Sequence[int],
    batch: int,
    positions: int,
    note: str,
) -> Net:
    """Make a net of an embedding and dense layers; seconds are estimated from flops and bytes.

        forward flops of a dense layer = 2 * elements * batch * positions; backward twice that

    The embedding moves each hit row (float32) in and out, forward and backward.
    Source: Kaplan et al., "Scaling laws for neural language models", 2020, table 1, for 2 flops
    per element and token.
    """
    rows = Tensor(name="embedding.weight", shape=embedding, sparsity=law)
    moved = 2 * 4 * law.density * rows.numel
    layers = [
        Layer(name="embedding", tensors=(rows,), forward_bytes=moved, backward_bytes=moved),
    ]
    for i, numel in enumerate(dense):
        flops = 2.0 * numel * batch * positions
        layers.append(
            Layer(
                name=f"dense.{i}",
                after=(layers[-1].name,),
                tensors=(Tensor(name=f"dense.{i}.weight", shape=(numel,)),),
                forward_flops=flops,
                backward_flops=2 * flops,
            )
        )
    source = (
        f"parameter counts and densities from {ZEN_PAPER}; {note}; compute estimated as 2 flops per"
        " dense element and position, backward twice that (Kaplan et al., 2020), not measured;"
        " activations not stated, 0"
    )
    return Net(name=name, layers=tuple(layers), batch=batch, source=source)
