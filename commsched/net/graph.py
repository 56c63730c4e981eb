"""Layers, their tensors and their order."""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from math import isfinite, prod
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from commsched.errors import CommschedError
from commsched.machine.model import Device
from commsched.net.experts import Experts
from commsched.net.measured import PROCESSOR, DeviceFit, Measured
from commsched.net.sparsity import DENSE, Sparsity
from commsched.records import (
    EXACT,
    NOT_NEGATIVE,
    POSITIVE,
    WRITTEN,
    Source,
    changed,
    check_name,
    normalise,
    one_of,
    unit,
)

if TYPE_CHECKING:
    import networkx

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # B
MAX_NUMEL = 2**53  # element counts must be exact as floats
# Fields of a layer that grow with its tensors, and with its seconds.
SIZES = "activation", "output", "whole"
WORK = (
    "forward",
    "backward",
    "forward_flops",
    "backward_flops",
    "forward_bytes",
    "backward_bytes",
)


Seconds = Annotated[float, unit("us", 1e-6), NOT_NEGATIVE]
Bytes = Annotated[float, unit("bytes", 1.0), NOT_NEGATIVE]
Work = Annotated[float, unit("", 1.0, quantity="flops"), NOT_NEGATIVE]  # operations
Traffic = Annotated[float, unit("", 1.0, quantity="bytes"), NOT_NEGATIVE]  # B, of memory
Count = Annotated[int, NOT_NEGATIVE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A parameter whose gradient the ranks must sum."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    sparsity: Sparsity = DENSE
    lists: bool = False  # the caller hands over the rows that were hit, without a dense array
    axis: int = -1  # whose parts tensor-parallel ranks hold; -1: each holds the whole tensor
    stack: str = ""  # of one expert: the tensor of all experts, in the order of a layer's tensors
    # The k-th largest magnitude of a gradient is about k^-decay; 0: not measured.
    decay: Annotated[float, EXACT, NOT_NEGATIVE] = 0.0

    def __post_init__(self) -> None:
        check_name("tensor", self.name)
        if self.decay:  # 0, of most tensors, needs no check
            normalise(self, f"tensor {self.name!r}: ")
        if self.lists and self.sparsity.law != "zipf":
            raise CommschedError(
                f"tensor {self.name!r}: lists of rows have law 'zipf', got {self.sparsity.law!r}"
            )
        if not self.shape or min(self.shape) < 1 or self.numel > MAX_NUMEL:
            raise CommschedError(
                f"tensor {self.name!r}: shape must have one or more positive sizes and at most"
                f" 2^53 elements, got {list(self.shape)}"
            )
        if not -1 <= self.axis < len(self.shape):
            raise CommschedError(
                f"tensor {self.name!r}: axis must be -1 to {len(self.shape) - 1}, got {self.axis}"
            )
        if self.dtype not in ITEMSIZE:
            known = ", ".join(ITEMSIZE)
            raise CommschedError(f"tensor {self.name!r}: no dtype {self.dtype!r}; known: {known}")
        if self.sparsity.rows and self.sparsity.rows > self.numel:
            raise CommschedError(
                f"tensor {self.name!r}: rows must be at most its {self.numel} elements, got"
                f" {self.sparsity.rows}"
            )

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEMSIZE[self.dtype]

    def with_density(self, density: float) -> "Tensor":
        """Give the gradient a share of non-zeros."""
        try:
            return replace(self, sparsity=self.sparsity.at(density))
        except CommschedError as error:
            raise CommschedError(f"tensor {self.name!r}: {error}") from None

    def scaled(self, scale: float, along: int = 0) -> "Tensor":
        """Scale a dimension, and with the first one the rows of a Zipf law."""
        law, least = self.sparsity, 1
        if law.law == "zipf":
            least = 2  # a law needs two rows
            law = replace(law, rows=max(least, round(law.rows * scale)))
        sizes = list(self.shape)
        sizes[along] = max(least, round(sizes[along] * scale))
        if law.rows:
            return replace(self, shape=tuple(sizes), sparsity=law)
        return changed(self, shape=tuple(sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A step of the forward pass, and its backward; either measured seconds or modelled work."""

    name: str
    after: Annotated[tuple[str, ...], WRITTEN] = ()  # layers whose outputs it reads
    forward: Seconds | None = None  # measured
    backward: Seconds | None = None  # measured
    forward_flops: Work = 0.0
    backward_flops: Work = 0.0
    forward_bytes: Traffic = 0.0  # for layers that are not bound by flops
    backward_bytes: Traffic = 0.0
    matrix: tuple[int, ...] = ()  # rows, inner and columns of its product; (): none, or unknown
    activation: Bytes = 0.0  # kept from forward to backward
    output: Bytes = 0.0  # that later layers read; 0: equal to `activation`
    # How tensor-parallel ranks share its work; "": each of them does all of it. See `tensor_cut`.
    cut: Annotated[str, one_of("", "columns", "rows", "inside", "pair")] = ""
    parts: Count = 0  # equal parts that can be shared, such as heads; 0: any number, with padding
    summed: Count = 0  # elements that these ranks sum, in each direction that needs a sum
    whole: Bytes = 0.0  # of `activation`, that each of these ranks keeps
    # If set, ranks may share its experts: axis 0 of tensors of `axis` 0, or the tensors of a stack.
    experts: Experts | None = None
    block: str = ""  # consecutive layers of one block stay in one stage of a pipeline
    tensors: tuple[Tensor, ...] = ()

    def __post_init__(self) -> None:
        check_name("layer", self.name)
        if self.matrix and (len(self.matrix) != 3 or min(self.matrix) < 1):
            raise CommschedError(
                f"layer {self.name!r}: matrix must be three positive sizes, got {list(self.matrix)}"
            )
        normalise(self, f"layer {self.name!r}: ")
        if self.experts is not None and self.cut:
            raise CommschedError(f"layer {self.name!r}: it has either 'experts' or 'cut', not both")

    def with_density(self, density: float) -> "Layer":
        """Give the gradients of all tensors a share of non-zeros."""
        return replace(self, tensors=tuple(one.with_density(density) for one in self.tensors))

    def scaled(self, size: float, work: float) -> "Layer":
        """Scale tensors, activation and output by `size`, seconds and work by `work`."""
        found: dict[str, Any] = {
            name: value * factor
            for names, factor in ((SIZES, size), (WORK, work))
            for name in names
            if (value := getattr(self, name))
        }
        if self.tensors:
            found["tensors"] = tuple(
                # the number of experts stays, so that ranks can share them as before
                tensor.scaled(size, along=int(len(tensor.shape) > 1))
                if self.experts and tensor.axis == 0
                else tensor.scaled(size)
                for tensor in self.tensors
            )
        if self.experts:
            found["experts"] = self.experts.scaled(size)
        if self.summed:
            found["summed"] = round(self.summed * size)
        return changed(self, f"layer {self.name!r}: ", **found)


@dataclass(frozen=True, kw_only=True)
class Net:
    """A net: a DAG of layers in a topological order, forward direction.

    Layers given in another order are sorted, keeping the given order wherever the edges allow it.
    """

    FORMAT: ClassVar[str] = "commsched-net/1"

    name: str
    source: Source = "not stated"
    batch: int = 1  # samples per rank and step
    measured: Measured | None = None  # where the layers' seconds were measured
    compute: DeviceFit | None = None  # how they were made for a machine's device; None: as measured
    optimizer: Seconds | None = None  # of a step's whole update, measured
    # Measured: to put all sums back before a single update of all parameters. None: each bucket is
    # updated separately.
    apply: Seconds | None = None
    data: Seconds = 0.0  # before a step's first layer: its batch, and what is between two steps
    tensor: Annotated[int, POSITIVE] = 1  # ranks that share its cut layers; it is the part of one
    sequence: Annotated[int, POSITIVE] = 1  # of `tensor`, that share the tokens of other layers
    experts: Annotated[int, POSITIVE] = 1  # ranks that share its experts; it is the part of one
    layers: tuple[Layer, ...]

    def __post_init__(self) -> None:
        check_name("net", self.name)
        normalise(self)
        if self.batch < 1:
            raise CommschedError(f"batch must be at least 1, got {self.batch}")
        if not self.layers:
            raise CommschedError("a net needs one or more layers, got none")
        _check_unique("layer", (layer.name for layer in self.layers))
        _check_unique("tensor", (t.name for layer in self.layers for t in layer.tensors))
        object.__setattr__(self, "layers", _ordered(self.layers))
        if self.numel > MAX_NUMEL:
            raise CommschedError(f"a net has at most 2^53 elements, got {self.numel}")

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, forward order."""
        return {t.name: t for layer in self.layers for t in layer.tensors}

    @cached_property
    def homes(self) -> dict[str, tuple[int, str]]:
        """Return the position and name of each tensor's layer."""
        return {
            tensor.name: (position, layer.name)
            for position, layer in enumerate(self.layers)
            for tensor in layer.tensors
        }

    @cached_property
    def derived(self) -> dict[object, object]:
        """Return the cache of results derived from the net, by key."""
        return {}

    @cached_property
    def experts_of(self) -> dict[str, Experts]:
        """Return the experts of each layer that has some, by its name."""
        return {layer.name: layer.experts for layer in self.layers if layer.experts}

    @cached_property
    def numel(self) -> int:
        return sum(t.numel for t in self.tensors.values())

    @cached_property
    def nbytes(self) -> int:
        """Return the bytes of all gradients, or all parameters, in the types of their tensors."""
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def occupies_cores(self) -> bool:
        """Tell whether compute of this net keeps a core busy, as its measurement was on a core.

        All other nets compute on an accelerator, which leaves the cores to communication.
        """
        return self.measured is not None and self.measured.device == PROCESSOR

    @cached_property
    def dag(self) -> "networkx.DiGraph[str]":
        """Return the layers as a networkx graph; node attribute `layer`, edges along the data."""
        import networkx  # slow to import; ranks do not need it

        dag: networkx.DiGraph[str] = networkx.DiGraph()
        for layer in self.layers:
            dag.add_node(layer.name, layer=layer)
            dag.add_edges_from((before, layer.name) for before in layer.after)
        return dag

    def scaled(self, scale: float, stretch: float = 1.0) -> "Net":
        """Shrink elements, work and seconds by `scale`; multiply seconds and work by `stretch`."""
        for name, value in (("scale", scale), ("stretch", stretch)):
            if not (isfinite(value) and value > 0):
                raise CommschedError(f"{name} must be finite and more than 0, got {value}")
        if self.numel * scale > MAX_NUMEL:
            raise CommschedError(
                f"a net has at most 2^53 elements; a scale of {scale:g} makes more of {self.numel}"
            )
        work = scale * stretch
        layers = tuple(layer.scaled(scale, work) for layer in self.layers)
        return self.updated(work, layers=layers, data=self.data * work)

    def updated(self, factor: float, **changes: Any) -> "Net":
        """Return the net with other fields, and the measured seconds of its update multiplied."""
        optimizer, apply = (
            None if seconds is None else seconds * factor
            for seconds in (self.optimizer, self.apply)
        )
        return replace(self, optimizer=optimizer, apply=apply, **changes)

    def part(self, layers: Iterable[Layer], **degree: Any) -> "Net":
        """Return the part with these layers, whose update takes its share of the measured one."""
        found = replace(self, layers=tuple(layers), **degree)
        return found.updated(found.numel / max(self.numel, 1))

    def with_density(self, density: float) -> "Net":
        """Give every gradient a share of non-zeros, spread evenly in tensors that were dense."""
        return replace(self, layers=tuple(layer.with_density(density) for layer in self.layers))

    def seconds(self, layer: Layer, device: Device) -> tuple[float, float]:
        """Return the seconds of a layer's forward and backward: as measured, else a roofline.

        The first layer's forward also waits for the batch, and for what is between two steps.

            t = max(F / (e P), b / B)

        F = flops of the layer; e P [1/s] = reached share of the device's peak, or what a measured
        matrix product of the nearest shape reaches; b [B] = memory traffic; B [B/s] = memory
        bandwidth.
        Source: Williams, Waterman & Patterson, "Roofline", CACM 52(4), 2009.
        Holds for layers that keep the whole device busy.
        """
        rate = device.rate(layer.matrix)
        forward, backward = layer.forward, layer.backward
        if forward is None:
            forward = max(layer.forward_flops / rate, layer.forward_bytes / device.bandwidth)
        if backward is None:
            backward = max(layer.backward_flops / rate, layer.backward_bytes / device.bandwidth)
        if self.data and layer.name == self.layers[0].name:
            forward += self.data
        return forward, backward

    def update_seconds(self, numel: float, traffic: float, device: Device) -> float:
        """Return the s to put back and update `numel` elements: their share of the measured s.

        If no update was measured, each element moves `traffic` B in memory.
        """
        share = numel / max(self.numel, 1)
        if self.optimizer is None:
            return numel * traffic / device.bandwidth + (self.apply or 0.0) * share
        return (self.optimizer + (self.apply or 0.0)) * share


def _check_unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CommschedError(f"two {kind}s are named {name!r}; names must differ")
        seen.add(name)


def _ordered(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Sort topologically, earliest given first."""
    seen: set[str] = set()
    for layer in layers:
        if len(set(layer.after)) < len(layer.after) or not seen.issuperset(layer.after):
            break
        seen.add(layer.name)
    else:
        return layers
    index = {layer.name: i for i, layer in enumerate(layers)}
    for layer in layers:
        unknown = next((name for name in layer.after if name not in index), None)
        if unknown is not None:
            raise CommschedError(
                f"layer {layer.name!r} comes after {unknown!r}, which is not a layer of this net"
            )
        _check_unique(f"predecessor of layer {layer.name!r}", layer.after)
    sorter = TopologicalSorter({layer.name: layer.after for layer in layers})
    try:
        sorter.prepare()
    except CycleError as error:
        loop = " -> ".join(error.args[1])
        raise CommschedError(f"the layers form a loop: {loop}") from None
    found: list[Layer] = []
    ready: list[int] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, index[name])
        found.append(layers[heapq.heappop(ready)])
        sorter.done(found[-1].name)
    return tuple(found)
