"""Floating-point operations and parameters of ONNX's operators (onnx.ai/onnx/operators)."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

Shape = tuple[int, ...]

VIEWS = ("Reshape", "Flatten", "Identity", "Squeeze", "Unsqueeze", "Dropout")  # move no memory
STATIC = ("Shape", "Size")  # outputs known before the step
RECURRENT = ("LSTM", "GRU", "RNN")
KEEP_AXES = ("Gather", "Slice", "Identity", "Dropout", "Cast")  # sequence and batch stay in place
QUANTISED = ("QuantizeLinear", "DequantizeLinear")  # convert the numbers of their first input
ARITHMETIC = ("Add", "Sub", "Mul", "Div")
NORMS = (
    *("BatchNormalization", "LayerNormalization", "GroupNormalization"),
    *("InstanceNormalization", "SimplifiedLayerNormalization", "RMSNormalization"),
)
# Inputs that are parameters, if no input of the model leads to them.
PARAMETERS: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", *NORMS), (1, 2)),
    **dict.fromkeys(("Gemm", "Einsum", *ARITHMETIC), (0, 1, 2)),
    **dict.fromkeys(RECURRENT, (1, 2, 3, 7)),  # 7: peepholes of an LSTM
    "DeformConv": (1, 3),
    "MatMul": (0, 1),
    "Gather": (0,),
    "PRelu": (1,),
}
SUBGRAPHS = ("If", "Loop", "Scan", "SequenceMap")


def flops(
    kind: str, inputs: Sequence[Shape], output: Shape, attributes: Mapping[str, Any]
) -> float:
    """Return 2 for each multiplication and addition of a product, else 1 for each output."""
    a, b, c = (*inputs, (), (), ())[:3]
    if kind in ("Conv", "DeformConv") and len(b) > 2:
        return 2.0 * prod(output) * prod(b[1:])
    if kind == "ConvTranspose" and len(b) > 2:
        return 2.0 * prod(a) * prod(b[1:])
    if kind == "Gemm" and len(a) == 2:
        return 2.0 * prod(output) * a[0 if attributes.get("transA") else 1]
    if kind == "MatMul" and a:
        return 2.0 * prod(output) * a[-1]
    if kind == "Attention" and len(b) > 2:  # scores and their weighted sum
        past = inputs[4] if len(inputs) > 4 else ()
        keys = b[-2] + (past[-2] if len(past) > 2 else 0)
        return 2.0 * (prod(a) + prod(output)) * keys
    if kind == "Einsum":
        return _einsum(attributes.get("equation", b""), inputs)
    if kind in RECURRENT and len(a) == 3:
        return 2.0 * a[0] * a[1] * (prod(b) + prod(c))
    return float(prod(output))


def _einsum(equation: bytes, inputs: Sequence[Shape]) -> float:
    """Return 2 for each combination of the axes; "..." stands for those that have no letter."""
    terms = equation.decode("utf-8", "replace").partition("->")[0].replace(" ", "").split(",")
    sizes: dict[str | int, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        before, dots, behind = term.partition("...")
        more = len(shape) - len(before) - len(behind) if dots else 0
        axes = (*before, *range(-more, 0), *behind)  # axes of "..." are aligned at the last one
        if len(axes) != len(shape):
            return 0.0
        for axis, size in zip(axes, shape, strict=True):
            sizes[axis] = max(size, sizes.get(axis, 1))
    return 2.0 * prod(sizes.values())
