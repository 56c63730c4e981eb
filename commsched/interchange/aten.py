"""Floating-point operations of PyTorch's operators, from the shapes of their inputs."""

import json
from collections.abc import Sequence
from math import prod
from typing import Any

from commsched.interchange.kineto_events import KinetoEvent

Shape = tuple[int, ...]

# Operators that move no memory: views, and allocations without a write.
VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "t", "transpose", "as_strided", "expand", "detach", "slice", "select"),
        *("permute", "reshape", "unsqueeze", "squeeze", "alias", "_unsafe_view", "unbind"),
        *("split", "narrow", "result_type", "empty", "empty_like", "empty_strided", "resize_"),
        *("as_strided_", "detach_", "resolve_conj", "resolve_neg"),
    )
)


def flops(name: str, inputs: Sequence[Shape], output: Shape = (), stated: Any = ()) -> float:
    """Return 2 for each multiply-add; 0 for operators without matrix products.

    Only a convolution needs `output`, the shape of its result. `stated` holds the values of inputs
    that are not tensors, each at the input's position.
    """
    a, b, c = (*inputs, (), (), ())[:3]
    if name in ("aten::mm", "aten::bmm") and a and b:
        return 2.0 * prod(a) * b[-1]
    if name in ("aten::addmm", "aten::baddbmm") and b and c:
        return 2.0 * prod(b) * c[-1]
    if name == "aten::convolution" and len(b) > 2:
        # The weights multiply each output element; in a transposed convolution, each input element.
        meets = a if _is_true(stated, 6) else output or _convolved(a, b, stated)
        return 2.0 * prod(meets) * prod(b[1:]) if meets else 0.0
    if name == "aten::convolution_backward" and len(c) > 2:
        meets = b if _is_true(stated, 7) else a
        return 2.0 * prod(meets) * prod(c[1:]) * _gradients(stated)
    if name.startswith("aten::mkldnn_rnn_layer") and len(a) == 3:  # both weights meet every state
        return (2 if name.endswith("backward") else 1) * 2.0 * prod(a[:2]) * (prod(b) + prod(c))
    if name.endswith("_attention_math"):  # its matrix products are recorded as separate operators
        return 0.0
    if "_scaled_dot_product" in name and "attention" in name:
        backward = name.endswith("backward")
        query, key = (*inputs[backward : backward + 2], (), ())[:2]
        if len(query) == len(key) == 4:  # products: 2 forward; 4 backward and 1 recomputed
            return (5 if backward else 2) * 2.0 * prod(query) * key[2]
    return 0.0


def recorded_flops(event: KinetoEvent) -> float:
    """Return the floating-point operations of a recorded operator."""
    if not event.name.startswith("aten::"):
        return 0.0
    inputs = [one.shape or () for one in event.inputs]
    return flops(event.name, inputs, (), event.args.get("Concrete Inputs", ()))


def _is_true(stated: Any, place: int) -> bool:
    """Tell whether the trace records an input as true."""
    return _text(stated, place) in ("true", "1")


def _gradients(stated: Any) -> int:
    """Count the gradients (of the input, of the weights) that a convolution's backward computes."""
    mask = _text(stated, 10).strip("[]").split(",")[:2]
    return 2 - sum(word.strip() in ("false", "0") for word in mask)


def _text(stated: Any, place: int) -> str:
    known = isinstance(stated, list) and place < len(stated)
    return str(stated[place]).lower() if known else ""


def _convolved(x: Shape, weight: Shape, stated: Any) -> Shape:
    """Return the shape of a convolution's output; () if stride, padding, dilation are unknown."""
    try:
        stride, padding, dilation = (list(json.loads(text)) for text in stated[3:6])
        if _text(stated, 6) not in ("false", "0"):  # perhaps a transposed convolution
            return ()
        sizes = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(x[2:], weight[2:], stride, padding, dilation, strict=True)
        ]
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return ()
    return (x[0], weight[0], *sizes)
