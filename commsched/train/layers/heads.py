"""Auxiliary heads: copies of a net's last layer with parameters of their own."""

from collections.abc import Sequence
from dataclasses import replace

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.train.layers.layer import Gradients, Kept, Parameters, TrainableLayer, TrainableNet


class Head(TrainableLayer):
    """A copy of a layer; the head's name precedes the names of its tensors."""

    def __init__(self, name: str, like: TrainableLayer) -> None:
        super().__init__(name)
        self._like = like
        self._names = {old: f"{name}.{old}" for old in like.tensors}
        self.tensors = {new: like.tensors[old] for old, new in self._names.items()}

    def _own(self, parameters: Parameters) -> Parameters:
        return {old: parameters[new] for old, new in self._names.items()}

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        return self._like.forward(self._own(parameters), inputs)

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        below, found = self._like.backward(self._own(parameters), kept, above)
        return below, {self._names[old]: gradient for old, gradient in found.items()}


def with_heads(net: TrainableNet, names: Sequence[str]) -> TrainableNet:
    """Return the net with auxiliary heads of these names behind its layers."""
    last = net.layers[-1]
    for tensor in sorted(last.borrowed if names else ()):
        raise CommschedError(
            f"net {net.name!r}: auxiliary heads are like layer {last.name!r}, which reads tensor"
            f" {tensor!r} of another layer; nearest: a net that shares none"
        )
    return replace(net, layers=(*net.layers, *(Head(name, last) for name in names)))
