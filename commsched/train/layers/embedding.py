"""Tables whose rows are looked up; gradients are zero except in the rows that were read."""

from commsched.arrays import Array
from commsched.kernels.modules import module_of
from commsched.kernels.rows import summed_rows
from commsched.train.layers.layer import (
    Gradients,
    Kept,
    Own,
    Parameters,
    Start,
    Sums,
    TrainableLayer,
    as_float32,
    product,
)


class Embedding(TrainableLayer):
    """A lookup of table rows: (m, ...) whole numbers -> (m, ..., width)."""

    def __init__(self, name: str, rows: int, width: int, deviation: float) -> None:
        super().__init__(name, weight=Start((rows, width), deviation))
        (self._weight,) = self.tensors

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        return parameters[self._weight].take(inputs, axis=0), inputs

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        rows, width = parameters[self._weight].shape
        table = summed_rows(rows, kept.reshape(-1), as_float32(above.reshape(-1, width)))
        return None, {self._weight: table.astype(above.dtype, copy=False)}


class Positions(TrainableLayer):
    """Position embeddings: adds a table row to each position of (m, length, width) inputs."""

    def __init__(self, name: str, length: int, width: int, deviation: float) -> None:
        super().__init__(name, weight=Start((length, width), deviation))
        (self._weight,) = self.tensors

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        return inputs + (yield Own(parameters[self._weight])), None

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        module, whole = module_of(above), parameters[self._weight]
        table = module.zeros(whole.shape, above.dtype)
        table[(yield Own(module.arange(len(whole))))] = as_float32(above).sum(axis=0)
        return above, {self._weight: table}


class Tied(TrainableLayer):
    """Scores by the tied table of an `Embedding`: y = x E^T (Press & Wolf, EACL 2017)."""

    def __init__(self, name: str, weight: str) -> None:
        super().__init__(name)
        self._weight = weight
        self.borrowed = frozenset([weight])

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        return product(inputs, parameters[self._weight].T), inputs

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        rows, width = parameters[self._weight].shape
        table = product(above.reshape(-1, rows).T, kept.reshape(-1, width))
        return product(above, parameters[self._weight]), {self._weight: table}
