"""Transformer layers: layer norm and causal attention (Vaswani et al., NeurIPS 2017)."""

from math import sqrt

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import module_of
from commsched.train.layers.dense import Linear
from commsched.train.layers.layer import (
    Cut,
    Gradients,
    Kept,
    Parameters,
    Start,
    Sums,
    TrainableLayer,
    as_float32,
    column_sums,
    product,
)

LEAST = 1e-5  # added to a variance; source: Ba, Kiros & Hinton, arXiv 1607.06450, in PyTorch


class LayerNorm(TrainableLayer):
    """Mean 0 and variance 1 over the last axis, then a gain and a bias (arXiv 1607.06450)."""

    def __init__(self, name: str, width: int) -> None:
        super().__init__(name, gain=Start((width,), mean=1.0), bias=Start((width,)))
        self._gain, self._bias = self.tensors

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        x = as_float32(inputs)
        x = x - x.mean(axis=-1, keepdims=True)
        inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + LEAST)
        normal = x * inverse
        outputs = normal * parameters[self._gain] + parameters[self._bias]
        return outputs.astype(inputs.dtype), (normal, inverse)

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        normal, inverse = kept
        wanted = as_float32(above)
        found = {
            self._gain: column_sums(wanted * normal).astype(above.dtype),
            self._bias: column_sums(above),
        }
        scaled = wanted * parameters[self._gain]
        along = (scaled * normal).mean(axis=-1, keepdims=True)
        below = inverse * (scaled - scaled.mean(axis=-1, keepdims=True) - normal * along)
        return below.astype(above.dtype), found


class Attention(TrainableLayer):
    """Each place attends to itself and to earlier places: (m, length, width), in and out."""

    def __init__(self, name: str, width: int, heads: int, gain: float) -> None:
        assert width % heads == 0, (width, heads)
        super().__init__(name)
        # A tensor-parallel rank has some of the heads of queries, keys and values.
        columns, rows = Cut(axis=1, parts=heads, blocks=3), Cut(axis=0, parts=heads)
        self._into = Linear(f"{name}.into", width, 3 * width, columns=columns)
        self._out = Linear(f"{name}.out", width, width, gain, rows=rows)
        self.tensors = {**self._into.tensors, **self._out.tensors}
        self._size = width // heads  # of a head

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        joined, into = yield from self._into.forward_sums(parameters, inputs)
        m, length = joined.shape[:2]
        apart = joined.reshape(m, length, 3, -1, self._size)
        query, key, value = (apart[:, :, i].swapaxes(1, 2) for i in range(3))
        scores = as_float32(product(query, key.swapaxes(-1, -2))) / sqrt(self._size)
        places = module_of(inputs).arange(length)
        later = places[np.newaxis, :] > places[:, np.newaxis]
        scores = scores + later * scores.dtype.type(-1e9)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(inputs.dtype)
        mixed = product(weights, value).swapaxes(1, 2).reshape(m, length, -1)
        outputs, out = yield from self._out.forward_sums(parameters, mixed)
        return outputs, (into, query, key, value, weights, out)

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        into, query, key, value, weights, out = kept
        mixed, found = yield from self._out.backward_sums(parameters, out, above)
        m, length = mixed.shape[:2]
        mixed = mixed.reshape(m, length, -1, self._size).swapaxes(1, 2)
        of_weights = as_float32(product(mixed, value.swapaxes(-1, -2)))
        w = as_float32(weights)
        scores = w * (of_weights - (of_weights * w).sum(axis=-1, keepdims=True))
        scores = (scores / sqrt(self._size)).astype(above.dtype)
        parts = [
            product(scores, key),
            product(scores.swapaxes(-1, -2), query),
            product(weights.swapaxes(-1, -2), mixed),
        ]
        joined = module_of(above).stack([part.swapaxes(1, 2) for part in parts], axis=2)
        joined = joined.reshape(m, length, -1)
        below, more = yield from self._into.backward_sums(parameters, into, joined)
        return below, found | more
