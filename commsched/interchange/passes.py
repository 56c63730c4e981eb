"""Layers from a recorded step: operations of the forward pass, and autograd's nodes after them.

Autograd numbers its nodes as the forward pass makes them; a node of the backward pass carries the
number. The gradient of a parameter belongs to the node that ran before its accumulation, and
through that node to the operation or module that made the node.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from commsched.net.graph import Tensor


class Work(NamedTuple):
    """The work of an operation."""

    seconds: float = 0.0
    flops: float = 0.0
    nbytes: float = 0.0  # B, memory traffic

    def plus(self, other: "Work") -> "Work":
        """Return the sum."""
        return Work(*(a + b for a, b in zip(self, other, strict=True)))


class Gradient(NamedTuple):
    """A parameter's complete gradient; shape None: not recorded."""

    shape: tuple[int, ...] | None
    dtype: str


class Forward(NamedTuple):
    """An operation of the forward pass that no other operation calls."""

    name: str
    module: str  # innermost module that it runs in; "": not recorded
    numbers: tuple[int, ...]  # nodes that the operation may have made, in order
    work: Work


class Backward(NamedTuple):
    """A node of the backward pass."""

    name: str
    number: int  # -1: none
    work: Work
    gradients: tuple[Gradient, ...]  # ready at its end
    sent: tuple[Gradient, ...] = ()  # buckets whose all-reduce begins in this node


@dataclass
class LayerWork:
    """The measured work and gradients of a layer in one step."""

    name: str
    place: int  # index of its last operation in the forward pass; -1: not known
    forward: Work = field(default_factory=Work)
    backward: Work = field(default_factory=Work)
    ready: int = 0  # index of the node at which its last gradient is ready
    gradients: list[Gradient] = field(default_factory=list)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The parameters, named by the layer's name and a number."""
        return tuple(
            Tensor(name=f"{self.name}.{i}", shape=gradient.shape or (1,), dtype=gradient.dtype)
            for i, gradient in enumerate(self.gradients)
            if gradient.shape is None or prod(gradient.shape) > 0
        )


def layers_of(forward: Sequence[Forward], backward: Sequence[Backward]) -> list[LayerWork]:
    """Return the layers, sorted so that their gradients become complete from the last to the first.

    As in `commsched capture`, a layer's forward ends with its last operation and begins with the
    end of the layer before; its backward ends with its last gradient. The last layer of the
    forward pass takes the following operations, such as the loss.
    """
    made = {number: place for place, op in enumerate(forward) for number in op.numbers}
    found: dict[str, LayerWork] = {}
    node, place = "", -1
    for at, op in enumerate(backward):
        if op.number >= 0:
            node, place = op.name, made.get(op.number, -1)
        if not op.gradients:
            continue
        module = forward[place].module if place >= 0 else ""
        key = module or (f"operation {place}" if place >= 0 else f"node {node} {at}")
        layer = found.setdefault(key, LayerWork(module, place))
        if not module:
            layer.name = forward[place].name if place >= 0 else node
        layer.place, layer.ready = max(layer.place, place), at
        layer.gradients += op.gradients
    _share_backward(list(found.values()), backward)
    _share_forward(list(found.values()), forward)
    layers = sorted(found.values(), key=lambda layer: -layer.ready)
    _number_names(layers)
    if any(gradient.shape is None for layer in layers for gradient in layer.gradients):
        return _by_bucket(layers, backward)
    return layers


def _share_backward(layers: list[LayerWork], backward: Sequence[Backward]) -> None:
    """Give each layer the backward work since the previous layer's gradients were complete."""
    begin = 0
    for layer in sorted(layers, key=lambda layer: layer.ready):
        for op in backward[begin : layer.ready + 1]:
            layer.backward = layer.backward.plus(op.work)
        begin = layer.ready + 1


def _share_forward(layers: list[LayerWork], forward: Sequence[Forward]) -> None:
    """Give each layer the forward work since the previous layer's end, the last one the rest."""
    last = {op.module: place for place, op in enumerate(forward) if op.module}
    for layer in layers:
        layer.place = last.get(layer.name, layer.place)
    known = sorted((layer for layer in layers if layer.place >= 0), key=lambda one: one.place)
    begin = 0
    for layer in known:
        end = len(forward) if layer is known[-1] else layer.place + 1
        for op in forward[begin:end]:
            layer.forward = layer.forward.plus(op.work)
        begin = end


def _number_names(layers: list[LayerWork]) -> None:
    """Number layers of equal name, in the order of the forward pass."""
    alike: dict[str, int] = {}
    names = [layer.name for layer in layers]
    for layer in sorted(layers, key=lambda layer: layer.place):
        if names.count(layer.name) > 1:
            number = alike[layer.name] = alike.get(layer.name, -1) + 1
            layer.name = f"{layer.name}.{number}"


def _by_bucket(layers: list[LayerWork], backward: Sequence[Backward]) -> list[LayerWork]:
    """Join layers of unknown shapes into one layer per all-reduced bucket; [] without buckets."""
    found: list[LayerWork] = []
    left = sorted(layers, key=lambda layer: layer.ready)
    for at, op in enumerate(backward):
        if not op.sent:
            continue
        some = [layer for layer in left if layer.ready <= at]
        left = left[len(some) :]
        if not some and found:
            found[-1].gradients += op.sent
            continue
        joined = LayerWork(f"bucket.{len(found)}", -1, ready=at, gradients=list(op.sent))
        for layer in some:
            joined.forward = joined.forward.plus(layer.forward)
            joined.backward = joined.backward.plus(layer.backward)
        found.append(joined)
    if found:
        for layer in left:  # the trace shows their bucket's all-reduce before its last gradient
            found[-1].forward = found[-1].forward.plus(layer.forward)
            found[-1].backward = found[-1].backward.plus(layer.backward)
    return found[::-1]
