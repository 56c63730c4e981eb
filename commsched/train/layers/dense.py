"""Fully connected layers and the activations between them."""

from math import prod, sqrt

import numpy as np

from commsched.arrays import Array
from commsched.train.layers.layer import (
    Cut,
    Gather,
    Gradients,
    Kept,
    LayerChain,
    Parameters,
    Start,
    Sums,
    TrainableLayer,
    as_float32,
    column_sums,
    product,
)

BEND = 0.044715  # of the tanh form of GELU; source: Hendrycks & Gimpel, arXiv 1606.08415
SLOPE = sqrt(2 / np.pi)


class Linear(TrainableLayer):
    """y = x W + b over the last axis: (..., inputs) -> (..., outputs).

    Tensor-parallel ranks may share the columns of W: then the gradients of the inputs are parts
    that must be summed; or its rows: then the outputs are. If the ranks share tokens around the
    layer, a sum has only the rank's own tokens, while products need all tokens.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        gain: float = 1.0,
        *,
        columns: Cut | None = None,
        rows: Cut | None = None,
    ) -> None:
        weight = Start((inputs, outputs), gain / sqrt(inputs), cut=columns or rows)
        bias = Start((outputs,), cut=columns and columns._replace(axis=0))
        super().__init__(name, weight=weight, bias=bias)
        self._weight, self._bias = self.tensors
        self._columns, self._rows = columns is not None, rows is not None

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        every = (yield Gather(inputs)) if self._columns else inputs
        outputs = product(every, parameters[self._weight])
        if self._rows:
            outputs = yield outputs
        outputs += parameters[self._bias]
        return outputs, inputs

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        weight, of_bias = parameters[self._weight], column_sums(above)
        if self._rows:
            above = yield Gather(above)
        if self._columns:
            kept = yield Gather(kept)
        flat = above.reshape(-1, weight.shape[1])
        found = {
            self._weight: product(kept.reshape(-1, weight.shape[0]).T, flat),
            self._bias: of_bias,
        }
        below = product(above, weight.T)
        if self._columns:
            below = yield below
        return below, found


class Relu(TrainableLayer):
    """max(x, 0)."""

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        positive = inputs > 0
        return inputs * positive, positive

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        return above * kept, {}


class Tanh(TrainableLayer):
    """tanh x."""

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        outputs = np.tanh(inputs)
        return outputs, outputs

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        return above * (1 - kept * kept), {}


class Gelu(TrainableLayer):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2.

    Source: Hendrycks & Gimpel, "Gaussian error linear units", arXiv 1606.08415.
    """

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        x = as_float32(inputs)
        bent = np.tanh(SLOPE * (x + BEND * (x * x * x)))
        return (0.5 * x * (1 + bent)).astype(inputs.dtype), (inputs, bent)

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        inputs, bent = kept
        x = as_float32(inputs)
        inner = SLOPE * (1 + 3 * BEND * (x * x))
        slope = 0.5 * (1 + bent) + 0.5 * x * (1 - bent * bent) * inner
        return (above * slope).astype(inputs.dtype), {}


class Reshape(TrainableLayer):
    """A change of each sample's shape, with equally many elements."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        super().__init__(name)
        self._shape = shape

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        assert prod(inputs.shape[1:]) == prod(self._shape)
        return inputs.reshape(len(inputs), *self._shape), inputs.shape

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        return above.reshape(kept), {}


def hidden(name: str, inputs: int, outputs: int) -> LayerChain:
    """Make a dense layer with a ReLU; deviation sqrt(2 / inputs) (He et al., ICCV 2015)."""
    return LayerChain(name, [Linear(name, inputs, outputs, sqrt(2)), Relu(f"{name}.relu")])
