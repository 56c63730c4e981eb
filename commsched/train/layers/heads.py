"""Auxiliary heads: copies of a net's last layer with separate parameters."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.train.layers.layer import Gradients, Kept, Parameters, TrainableLayer, TrainableNet

Shape = tuple[int, ...]  # of one sample


class Head(TrainableLayer):
    """A copy of a layer; the head's name precedes the names of its tensors.

    If a block's outputs (rows, columns, channels) have more values than the layer reads, the head
    pools them.
    """

    def __init__(self, name: str, like: TrainableLayer, reads: Shape) -> None:
        super().__init__(name)
        self._like, self._reads = like, reads
        self._names = {old: f"{name}.{old}" for old in like.tensors}
        self.tensors = {new: like.tensors[old] for old, new in self._names.items()}

    def _own(self, parameters: Parameters) -> Parameters:
        return {old: parameters[new] for old, new in self._names.items()}

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        tile = tile_of(inputs.shape[1:], self._reads)
        outputs, kept = self._like.forward(self._own(parameters), pooled(inputs, tile))
        return outputs, (kept, tile)

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        inner, tile = kept
        below, found = self._like.backward(self._own(parameters), inner, above)
        below = spread(below, tile)
        return below, {self._names[old]: gradient for old, gradient in found.items()}


def tile_of(given: Shape, wanted: Shape) -> tuple[int, int]:
    """Return rows and columns of the tiles whose means have as many values as `wanted`.

    Tiles are as square as possible; (1, 1) for equal shapes.
    Source: Nokland & Eidnes, "Training neural networks with local error signals", ICML 2019,
    whose heads read averages over space of a fixed number.
    """
    if given == wanted:
        return 1, 1
    times, rest = divmod(prod(given), prod(wanted))
    rows, columns = given[:2] if len(given) == 3 else (1, 1)
    sides = [
        (high, times // high)
        for high in range(1, times + 1)
        if not (rest or times % high or rows % high or columns % (times // high))
    ]
    if not sides:
        raise CommschedError(
            f"an auxiliary head reads {shown(wanted)} values of each sample, which are no means of"
            f" {shown(given)}; nearest: a net of equal blocks such as mlp or gpt, or"
            " --param variant=chunked --param chunks=1"
        )
    return min(sides, key=sum)


def shown(shape: Shape) -> str:
    """Format a shape."""
    return " x ".join(map(str, shape))


def pooled(values: Array, tile: tuple[int, int]) -> Array:
    """Return the means of tiles of (m, rows, columns, channels); for tile (1, 1) the values."""
    if tile == (1, 1):
        return values
    m, rows, columns, channels = values.shape
    high, wide = tile
    apart = values.reshape(m, rows // high, high, columns // wide, wide, channels)
    return apart.mean(axis=(2, 4))


def spread(gradient: Array, tile: tuple[int, int]) -> Array:
    """Return the gradient of the pooled values from the gradient of the means."""
    if tile == (1, 1):
        return gradient
    high, wide = tile
    even = gradient / gradient.dtype.type(high * wide)
    return even.repeat(high, axis=1).repeat(wide, axis=2)


def with_heads(net: TrainableNet, names: Sequence[str], reads: Shape) -> TrainableNet:
    """Return the net with auxiliary heads of these names after its layers.

    `reads`: shape of one sample's inputs of the net's last layer.
    """
    last = net.layers[-1]
    for tensor in sorted(last.borrowed if names else ()):
        raise CommschedError(
            f"net {net.name!r}: auxiliary heads are like layer {last.name!r}, which reads tensor"
            f" {tensor!r} of another layer; nearest: a net that shares none"
        )
    return replace(net, layers=(*net.layers, *(Head(name, last, reads) for name in names)))
