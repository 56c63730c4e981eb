"""Transformer layers: layer norm and causal attention (Vaswani et al., NeurIPS 2017)."""

from math import sqrt

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import module_of
from commsched.train.layers.dense import Linear
from commsched.train.layers.layer import (
    Gradients,
    Kept,
    Parameters,
    Start,
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
        self._into = Linear(f"{name}.into", width, 3 * width)
        self._out = Linear(f"{name}.out", width, width, gain)
        self.tensors = {**self._into.tensors, **self._out.tensors}
        self._heads = heads

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        joined, into = self._into.forward(parameters, inputs)
        m, length, width = inputs.shape
        apart = joined.reshape(m, length, 3, self._heads, width // self._heads)
        query, key, value = (apart[:, :, i].swapaxes(1, 2) for i in range(3))
        scores = as_float32(product(query, key.swapaxes(-1, -2))) / sqrt(width // self._heads)
        places = module_of(inputs).arange(length)
        later = places[np.newaxis, :] > places[:, np.newaxis]
        scores = scores + later * scores.dtype.type(-1e9)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(inputs.dtype)
        mixed = product(weights, value).swapaxes(1, 2).reshape(m, length, width)
        outputs, out = self._out.forward(parameters, mixed)
        return outputs, (into, query, key, value, weights, out)

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        into, query, key, value, weights, out = kept
        mixed, found = self._out.backward(parameters, out, above)
        m, length, width = above.shape
        mixed = mixed.reshape(m, length, self._heads, width // self._heads).swapaxes(1, 2)
        of_weights = as_float32(product(mixed, value.swapaxes(-1, -2)))
        w = as_float32(weights)
        scores = w * (of_weights - (of_weights * w).sum(axis=-1, keepdims=True))
        scores = (scores / sqrt(width // self._heads)).astype(above.dtype)
        parts = [
            product(scores, key),
            product(scores.swapaxes(-1, -2), query),
            product(weights.swapaxes(-1, -2), mixed),
        ]
        joined = module_of(above).stack([part.swapaxes(1, 2) for part in parts], axis=2)
        below, more = self._into.backward(parameters, into, joined.reshape(m, length, 3 * width))
        return below, found | more
