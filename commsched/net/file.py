"""Nets as JSON files: seconds become microseconds at this border, and nowhere else."""

import json
from pathlib import Path
from typing import Any, Literal

import msgspec

from commsched import files, shipped
from commsched.errors import CommschedError
from commsched.net.graph import Layer, Net, Tensor
from commsched.net.sparsity import Law, Sparsity
from commsched.units import significant

FORMAT: Literal["commsched-net/1"] = "commsched-net/1"


class SparsityFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A `sparsity` object of a net file; models/README.md explains the keys."""

    law: Law = "dense"
    density: float = 1.0
    exponent: float = 1.0
    rows: int = 0
    curve: tuple[tuple[float, float], ...] = ()


class TensorFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A `tensors` entry of a net file."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    sparsity: SparsityFile | None = None  # None: dense


class LayerFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A `layers` entry of a net file."""

    name: str
    after: tuple[str, ...] | None = None  # None: the layer before it in the file
    forward_us: float | None = None
    backward_us: float | None = None
    forward_flops: float = 0.0
    backward_flops: float = 0.0
    forward_bytes: float = 0.0
    backward_bytes: float = 0.0
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    tensors: tuple[TensorFile, ...] = ()


class NetFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A net file."""

    format: Literal["commsched-net/1"]
    name: str
    source: str
    batch: int = 1
    layers: tuple[LayerFile, ...]


def load(name: str | Path) -> Net:
    """Read a shipped net by its name, or any net by its path."""
    return read(shipped.path_of("nets", str(name)))


def read(path: str | Path) -> Net:
    """Read a net file."""
    return from_data(files.parse(files.read_text(path), str(path)), str(path))


def write(path: str | Path, graph: Net) -> None:
    """Write a net file, one layer a line."""
    data = to_data(graph)
    layers = ",\n".join(f"  {json.dumps(layer)}" for layer in data.pop("layers"))
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in data.items())
    files.write_bytes(path, f'{{\n{head} "layers": [\n{layers}\n ]\n}}\n'.encode())


def from_data(data: Any, where: str) -> Net:
    """Build a graph from parsed JSON; `where` names the file in errors."""
    net = files.convert(data, NetFile, where)
    try:
        if not net.source.strip():
            raise CommschedError("source must say where the numbers come from, got an empty text")
        before: tuple[str, ...] = ()
        layers = []
        for layer in net.layers:
            layers.append(_layer(layer, before))
            before = (layer.name,)
        return Net(name=net.name, layers=tuple(layers), batch=net.batch, source=net.source)
    except CommschedError as error:
        raise CommschedError(f"{where}: {error}") from None


def to_data(graph: Net) -> dict[str, Any]:
    """Turn a graph into plain JSON data; `from_data` of it gives equal data again."""
    net = NetFile(
        format=FORMAT,
        name=graph.name,
        source=graph.source or "not stated",
        batch=graph.batch,
        layers=(),
    )
    before: tuple[str, ...] = ()
    layers = []
    for layer in graph.layers:
        layers.append(_layer_data(layer, before))
        before = (layer.name,)
    return _lean(net) | {"layers": layers}


def _lean(item: msgspec.Struct) -> dict[str, Any]:
    """Turn a struct into plain data without the keys that have their default value."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(item)}
    data: dict[str, Any] = msgspec.to_builtins(item)
    return {key: value for key, value in data.items() if value != defaults[key]}


def _layer(layer: LayerFile, before: tuple[str, ...]) -> Layer:
    return Layer(
        name=layer.name,
        after=before if layer.after is None else layer.after,
        tensors=tuple(_tensor(tensor) for tensor in layer.tensors),
        forward=_seconds(layer.forward_us),
        backward=_seconds(layer.backward_us),
        forward_flops=significant(layer.forward_flops),
        backward_flops=significant(layer.backward_flops),
        forward_bytes=significant(layer.forward_bytes),
        backward_bytes=significant(layer.backward_bytes),
        activation=significant(layer.activation_bytes),
        output=significant(layer.output_bytes),
    )


def _layer_data(layer: Layer, before: tuple[str, ...]) -> dict[str, Any]:
    file = LayerFile(
        name=layer.name,
        after=None if layer.after == before else layer.after,
        forward_us=_microseconds(layer.forward),
        backward_us=_microseconds(layer.backward),
        forward_flops=significant(layer.forward_flops),
        backward_flops=significant(layer.backward_flops),
        forward_bytes=significant(layer.forward_bytes),
        backward_bytes=significant(layer.backward_bytes),
        activation_bytes=significant(layer.activation),
        output_bytes=significant(layer.output),
    )
    tensors = [_tensor_data(tensor) for tensor in layer.tensors]
    return _lean(file) | ({"tensors": tensors} if tensors else {})


def _tensor(tensor: TensorFile) -> Tensor:
    law = tensor.sparsity or SparsityFile()
    try:
        sparsity = Sparsity(
            law=law.law, density=law.density, exponent=law.exponent, rows=law.rows, curve=law.curve
        )
    except CommschedError as error:
        raise CommschedError(f"tensor {tensor.name[:60]!a}: {error}") from None
    return Tensor(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype, sparsity=sparsity)


def _tensor_data(tensor: Tensor) -> dict[str, Any]:
    law = tensor.sparsity
    sparsity = SparsityFile(
        law=law.law, density=law.density, exponent=law.exponent, rows=law.rows, curve=law.curve
    )
    lean = _lean(sparsity)
    file = TensorFile(name=tensor.name, shape=tensor.shape, dtype=tensor.dtype)
    return _lean(file) | ({"sparsity": lean} if lean else {})


def _seconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else significant(microseconds) * 1e-6


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else significant(seconds * 1e6)
