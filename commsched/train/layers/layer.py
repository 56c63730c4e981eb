"""Layers of a net, which go forward and backward on arrays of any module."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from commsched.arrays import Array
from commsched.kernels import random
from commsched.kernels.half import narrowed, widened
from commsched.net.experts import Experts

Parameters = Mapping[str, Array]  # tensor -> values, float32 except for mixed precision and checks
Gradients = dict[str, Array]  # tensor -> values like those of its parameter
Sums = Generator[Any, Array, tuple[Array, Any]]  # yields a rank's part, receives the sum of parts
Found = TypeVar("Found")
Kept = Any  # arrays that a layer keeps from forward to backward, in tuples and lists


class Gather(NamedTuple):
    """A layer's request for all tokens; `values` are this rank's: (m, tokens, ...)."""

    values: Array


class Own(NamedTuple):
    """A layer's request for the rows of this rank's tokens out of `values`: (length, ...)."""

    values: Array


class Cut(NamedTuple):
    """The division of a parameter among tensor-parallel ranks: runs of each block along an axis."""

    axis: int
    parts: int  # equal parts of a block that can be shared, such as heads
    blocks: int = 1
    experts: bool = False  # True: the parts belong to ranks that share experts

    def part(self, values: Array, place: int, ranks: int) -> Array:
        """Return the part of rank `place` of `ranks` ranks."""
        before, size, behind = self._around(values.shape)
        apart = values.reshape(*before, self.blocks, ranks, size // (self.blocks * ranks), *behind)
        own = apart.take(place, axis=self.axis + 1)
        return np.ascontiguousarray(own).reshape(*before, size // ranks, *behind)

    def joined(self, parts: Sequence[Array]) -> Array:
        """Return the whole values from the parts of all ranks."""
        before, size, behind = self._around(parts[0].shape)
        apart = [p.reshape(*before, self.blocks, 1, size // self.blocks, *behind) for p in parts]
        whole = np.concatenate(apart, axis=self.axis + 1)
        return np.ascontiguousarray(whole.reshape(*before, size * len(parts), *behind))

    def _around(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, tuple[int, ...]]:
        return shape[: self.axis], shape[self.axis], shape[self.axis + 1 :]


class Start(NamedTuple):
    """The initial values of a parameter: normal numbers around `mean`."""

    shape: tuple[int, ...]
    deviation: float = 0.0
    mean: float = 0.0
    cut: Cut | None = None  # None: every tensor-parallel rank has the whole parameter
    place: int = 0  # index of the rank with this part
    ranks: int = 1  # number of ranks that have parts

    def shared(self, place: int, ranks: int, experts: bool) -> "Start":
        """Return the part of rank `place`, one of `ranks` that share experts or tensors."""
        if self.cut is None or self.cut.experts != experts:
            return self
        sizes = [n // ranks if i == self.cut.axis else n for i, n in enumerate(self.shape)]
        return self._replace(shape=tuple(sizes), place=place, ranks=ranks)


class TrainableLayer:
    """A layer of a net: a pure function of parameters and inputs. The first axis is samples.

    A layer defines `forward` and `backward`, or `forward_sums` and `backward_sums`.
    """

    def __init__(self, name: str, **tensors: Start) -> None:
        self.name = name
        self.tensors = {f"{name}.{key}": start for key, start in tensors.items()}
        self.borrowed: frozenset[str] = frozenset()  # tensors of other layers that this layer reads

    def forward(self, parameters: Parameters, inputs: Array) -> tuple[Array, Kept]:
        """Return the outputs, and the arrays that `backward` needs."""
        return alone(self.forward_sums(parameters, inputs))

    def backward(self, parameters: Parameters, kept: Kept, above: Array) -> tuple[Array, Gradients]:
        """Return the gradients of inputs and parameters from the gradient of the outputs.

        A layer that reads whole numbers returns None for its inputs.
        """
        return alone(self.backward_sums(parameters, kept, above))

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        """Compute `forward`; yield the parts that tensor-parallel ranks must sum meanwhile."""
        return self.forward(parameters, inputs)
        yield

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        """Compute `backward`; yield the parts that tensor-parallel ranks must sum meanwhile."""
        return self.backward(parameters, kept, above)
        yield

    def routed(self, kept: Kept) -> Experts | None:
        """Return the experts of this layer with the load of a batch; None: no experts."""
        return None


def alone(sums: Generator[Any, Array, Found]) -> Found:
    """Run a pass on a rank that has whole parameters: its parts are the sums."""
    part: Array = None
    while True:
        try:
            part = sums.send(part.values if isinstance(part, Gather | Own) else part)
        except StopIteration as end:
            return cast(Found, end.value)


def lent(layers: Sequence[TrainableLayer]) -> Iterator[tuple[str, str]]:
    """Yield (layer, tensor) for each layer that reads a tensor of a layer outside of these."""
    own = {name for layer in layers for name in layer.tensors}
    return ((layer.name, name) for layer in layers for name in sorted(layer.borrowed - own))


class LayerChain(TrainableLayer):
    """A sequence of layers as one layer."""

    def __init__(self, name: str, parts: Sequence[TrainableLayer]) -> None:
        super().__init__(name)
        self._parts = parts
        self.tensors = {key: start for part in parts for key, start in part.tensors.items()}
        self.borrowed = frozenset(name for part in parts for name in part.borrowed)

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        kept = []
        for part in self._parts:
            inputs, own = yield from part.forward_sums(parameters, inputs)
            kept.append(own)
        return inputs, kept

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        found: Gradients = {}
        for part, own in zip(reversed(self._parts), reversed(kept), strict=True):
            above, gradients = yield from part.backward_sums(parameters, own, above)
            found |= gradients
        return above, found

    def routed(self, kept: Kept) -> Experts | None:
        found = [part.routed(own) for part, own in zip(self._parts, kept, strict=True)]
        return next((each for each in found if each is not None), None)


class Residual(LayerChain):
    """A chain whose inputs are added to its outputs (He et al., CVPR 2016)."""

    def forward_sums(self, parameters: Parameters, inputs: Array) -> Sums:
        outputs, kept = yield from super().forward_sums(parameters, inputs)
        return inputs + outputs, kept

    def backward_sums(self, parameters: Parameters, kept: Kept, above: Array) -> Sums:
        below, found = yield from super().backward_sums(parameters, kept, above)
        return above + below, found


@dataclass(frozen=True)
class TrainableNet:
    """A chain of layers that ends in scores of classes, and the name of its data."""

    name: str
    data: str  # name in commsched.data
    layers: tuple[TrainableLayer, ...]

    @cached_property
    def tensors(self) -> dict[str, Start]:
        """All parameters, in forward order."""
        return {name: start for layer in self.layers for name, start in layer.tensors.items()}

    def start(self, seed: int, layers: slice = slice(None)) -> dict[str, Array]:
        """Draw the initial parameters of layers, float32: equal for equal seeds."""
        own = (layer.tensors for layer in self.layers[layers])
        return {n: _drawn(start, seed, n) for tensors in own for n, start in tensors.items()}

    def shared(self, place: int, ranks: int, experts: bool = False) -> "TrainableNet":
        """Return the part of rank `place`, one of `ranks` that share experts or tensors."""
        layers = []
        for layer in self.layers:
            own = copy(layer)
            own.tensors = {
                n: start.shared(place, ranks, experts) for n, start in layer.tensors.items()
            }
            layers.append(own)
        return replace(self, layers=tuple(layers))

    def __iter__(self) -> Iterator[TrainableLayer]:
        return iter(self.layers)


def _drawn(start: Start, seed: int, name: str) -> Array:
    if start.ranks > 1 and start.cut is not None:
        sizes = [n * start.ranks if i == start.cut.axis else n for i, n in enumerate(start.shape)]
        whole = _drawn(start._replace(shape=tuple(sizes), ranks=1), seed, name)
        return start.cut.part(whole, start.place, start.ranks)
    if not start.deviation:
        return np.full(start.shape, start.mean, np.float32)
    normal = random.generator(seed, 0, 0, f"{name}/start").standard_normal(start.shape, np.float32)
    return np.float32(start.mean) + np.float32(start.deviation) * normal


def as_float32(values: Array) -> Array:
    """Convert 16-bit numbers to float32 for work that needs it; leave others unchanged."""
    return widened(values) if values.dtype == np.float16 else values


def as_float16(values: Array) -> Array:
    """Convert real inputs to 16 bits; leave whole numbers unchanged."""
    return narrowed(values) if values.dtype == np.float32 else values


def product(a: Array, b: Array) -> Array:
    """Return a @ b; 16-bit numbers are summed in float32, as in matrix units."""
    if a.dtype == np.float16 and isinstance(a, np.ndarray):
        return narrowed(widened(a) @ widened(b))
    return a @ b


def column_sums(values: Array) -> Array:
    """Sum over all axes except the last: (..., n) -> (n,)."""
    flat = as_float32(values).reshape(-1, values.shape[-1])
    return flat.sum(axis=0).astype(values.dtype)
