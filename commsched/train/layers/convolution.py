"""Convolutions as matrix products over the patches of an image."""

from math import sqrt

from commsched.arrays import Array
from commsched.kernels.modules import module_of
from commsched.train.layers.layer import (
    Gradients,
    Kept,
    Parameters,
    Start,
    TrainableLayer,
    column_sums,
    product,
)


class Convolution(TrainableLayer):
    """(m, height, width, inputs) -> (m, height / stride, width / stride, outputs).

    A patch is `size` x `size` (odd) around the position of its output; the image is zero-padded.
    """

    def __init__(
        self, name: str, inputs: int, outputs: int, size: int = 3, stride: int = 1
    ) -> None:
        assert size % 2 == 1, size
        patch = size * size * inputs
        start = Start((patch, outputs), sqrt(2 / patch))  # He et al., ICCV 2015
        super().__init__(name, weight=start, bias=Start((outputs,)))
        self._weight, self._bias = self.tensors
        self._size, self._stride = size, stride

    def _views(self, padded: Array) -> list[Array]:
        """Return size^2 views (m, rows, columns, inputs), one for each position in the patches."""
        edge, stride = self._size - 1, self._stride
        rows, columns = padded.shape[1] - edge, padded.shape[2] - edge
        return [
            padded[:, i : i + rows : stride, j : j + columns : stride]
            for i in range(self._size)
            for j in range(self._size)
        ]

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        edge = self._size // 2
        around = ((0, 0), (edge, edge), (edge, edge), (0, 0))
        padded = module_of(inputs).pad(inputs, around)
        patches = module_of(inputs).concatenate(self._views(padded), axis=-1)
        outputs = product(patches, parameters[self._weight])
        outputs += parameters[self._bias]
        return outputs, (patches, padded.shape)

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        (patches, shape), weight = kept, parameters[self._weight]
        flat = above.reshape(-1, weight.shape[1])
        found = {
            self._weight: product(patches.reshape(-1, weight.shape[0]).T, flat),
            self._bias: column_sums(above),
        }
        padded = module_of(above).zeros(shape, above.dtype)
        below, inputs, edge = product(above, weight.T), shape[-1], self._size // 2
        for place, view in enumerate(self._views(padded)):
            view += below[..., place * inputs : (place + 1) * inputs]
        return padded[:, edge : shape[1] - edge, edge : shape[2] - edge], found
