"""The passes of one batch through a net, layer by layer: forward in order, backward in reverse."""

from collections.abc import Collection, Generator, Iterable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import module_of
from commsched.train.layers.layer import (
    Gradients,
    Kept,
    Parameters,
    TrainableLayer,
    TrainableNet,
    alone,
    as_float32,
)


class Score(NamedTuple):
    """Loss and hits of a batch; the numbers stay on the device until `as_numbers`."""

    loss: float  # cross-entropy, summed over the guesses, in nats
    correct: int
    guesses: int

    def as_numbers(self) -> "Score":
        """Return the score as Python numbers; waits for a device."""
        return Score(float(self.loss), int(self.correct), self.guesses)

    def plus(self, other: "Score") -> "Score":
        """Add two scores."""
        loss, correct = self.loss + other.loss, self.correct + other.correct
        return Score(loss, correct, self.guesses + other.guesses)


def added(scores: Iterable[Score]) -> Score:
    """Add scores in their order."""
    return reduce(Score.plus, scores, Score(0.0, 0, 0))


class ForwardBackward:
    """A batch in its passes through layers [first, stop) of a net.

    A parameter's gradient is complete once backward has passed all layers that read the parameter.
    """

    def __init__(self, net: TrainableNet, parameters: Parameters, inputs: Array) -> None:
        self._net, self._parameters = net, parameters
        self.values = inputs  # (m, ...) inputs of the next layer
        self.above: Array = None  # the gradient of the next layer's outputs
        self._kept: dict[int, Kept] = {}
        self._partial: Gradients = {}

    def forward(self, index: int) -> None:
        """Go forward through a layer."""
        alone(self.forward_sums(index))

    def forward_sums(self, index: int) -> Generator[Any, Array, None]:
        """Go forward through a layer; yield the parts that tensor-parallel ranks must sum."""
        layer = self._net.layers[index]
        found = yield from layer.forward_sums(self._parameters, self.values)
        self.values, self._kept[index] = found

    def copy(self) -> "ForwardBackward":
        """Return a copy for another backward through these layers; its arrays are shared."""
        other = ForwardBackward(self._net, self._parameters, self.values)
        other._kept, other._partial = dict(self._kept), dict(self._partial)
        return other

    def activations(self, index: int) -> Kept:
        """Return the arrays that a layer keeps until its backward."""
        return self._kept[index]

    def score(self, targets: Array, weight: float) -> Score:
        """Compare the scores of the last layer, (..., classes), with the right classes, (...).

        Backward starts from the gradient of `weight` times the summed loss.
        """
        scores = as_float32(self.values).reshape(-1, self.values.shape[-1])
        right = targets.reshape(-1)
        found, gradient = cross_entropy(scores, right)
        gradient *= gradient.dtype.type(weight)
        self.above = gradient.reshape(self.values.shape).astype(self.values.dtype)
        return found

    def backward(self, index: int) -> Gradients:
        """Go back through a layer, and return the gradients that are complete now."""
        return alone(self.backward_sums(index))

    def backward_sums(self, index: int) -> Generator[Any, Array, Gradients]:
        """Go back through a layer; yield the parts that tensor-parallel ranks must sum."""
        layer = self._net.layers[index]
        kept = self._kept.pop(index)
        self.above, found = yield from layer.backward_sums(self._parameters, kept, self.above)
        done: Gradients = {}
        for name, gradient in found.items():
            if name in self._partial:
                gradient = self._partial.pop(name) + gradient
            (done if name in layer.tensors else self._partial)[name] = gradient
        return done


class RecomputingForwardBackward(ForwardBackward):
    """Passes that keep only the inputs of segments, and recompute each segment before its backward.

    Segments begin at the layers `starts`, which include the first layer. If the parameters do not
    change between the passes, the bits are equal.
    """

    def __init__(
        self, net: TrainableNet, parameters: Parameters, inputs: Array, starts: Collection[int]
    ) -> None:
        super().__init__(net, parameters, inputs)
        self._inputs: dict[int, Array] = dict.fromkeys(starts)

    def forward_sums(self, index: int) -> Generator[Any, Array, None]:
        if index in self._inputs:
            self._inputs[index] = self.values
        layer = self._net.layers[index]
        self.values, _ = yield from layer.forward_sums(self._parameters, self.values)

    def backward_sums(self, index: int) -> Generator[Any, Array, Gradients]:
        if index not in self._kept:
            start = max(place for place in self._inputs if place <= index)
            values = self._inputs.pop(start)
            for place in range(start, index + 1):
                layer = self._net.layers[place]
                found = yield from layer.forward_sums(self._parameters, values)
                values, self._kept[place] = found
        return (yield from super().backward_sums(index))


def cross_entropy(scores: Array, right: Array) -> tuple[Score, Array]:
    """Return loss, hits and gradient of softmax scores (m, classes) against classes (m,)."""
    places = module_of(scores).arange(len(right))
    shifted = scores - scores.max(axis=1, keepdims=True)
    gradient = np.exp(shifted)
    total = gradient.sum(axis=1, keepdims=True)
    losses = np.log(total[:, 0]) - shifted[places, right]
    hits = (scores.argmax(axis=1) == right).sum()
    gradient /= total
    gradient[places, right] -= 1
    return Score(losses.sum(dtype=np.float64), hits, len(right)), gradient


def gradients(
    net: TrainableNet, parameters: Parameters, inputs: Array, targets: Array
) -> tuple[Score, Iterator[tuple[str, Gradients]]]:
    """Return a batch's score, then each layer's gradients of the mean loss, last layer first."""
    walk = ForwardBackward(net, parameters, inputs)
    for index in range(len(net.layers)):
        walk.forward(index)
    score = walk.score(targets, 1 / targets.size).as_numbers()
    back = range(len(net.layers) - 1, -1, -1)
    return score, ((net.layers[index].name, walk.backward(index)) for index in back)


def score(net: TrainableNet, parameters: Parameters, inputs: Array, targets: Array) -> Score:
    """Score a batch."""
    return score_of(forward_through(net, parameters, inputs), targets)


def forward_through(
    layers: Iterable[TrainableLayer], parameters: Parameters, values: Array
) -> Array:
    """Go forward through layers and keep nothing."""
    for layer in layers:
        values, _ = layer.forward(parameters, values)
    return values


def score_of(scores: Array, targets: Array) -> Score:
    """Score (m, ..., classes) outputs against the right classes (m, ...)."""
    flat = as_float32(scores).reshape(-1, scores.shape[-1])
    return cross_entropy(flat, targets.reshape(-1))[0].as_numbers()
