"""Import of an ONNX model: the graph with the work of each node, priced later for a device."""

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from commsched.errors import CommschedError, install
from commsched.interchange.content import Content
from commsched.interchange.onnx_work import (
    ARITHMETIC,
    KEEP_AXES,
    PARAMETERS,
    QUANTISED,
    RECURRENT,
    STATIC,
    SUBGRAPHS,
    VIEWS,
    Shape,
    flops,
)
from commsched.interchange.registry import FORMATS, Format, Imported, Options
from commsched.nearest_name import nearest
from commsched.net.graph import Layer, Net, Tensor

TAGS = frozenset((0x12, 0x1A, 0x22, 0x28, 0x2A, 0x32, 0x3A, 0x42, 0x72))  # of ModelProto's fields
FLOATS = {1: "float32", 10: "float16", 16: "bfloat16", 11: "float64"}
WIDTHS = {1: 4, 2: 1, 3: 1, 4: 2, 5: 2, 6: 4, 7: 8, 9: 1, 10: 2, 11: 8, 12: 4, 13: 8, 16: 2}  # B
NODES = 100_000
NOTE = (
    "flops are 2 per multiply and add, else 1 per output element; memory traffic: every operand of"
    " an unfused operator moves once; backward is twice the forward; activations are the outputs;"
    " nothing here is measured"
)


def recognises(content: Content) -> bool:
    """Tell whether a file may be an ONNX model: its version, then another field."""
    head = content.data[:3]
    return len(head) == 3 and head[0] == 8 and head[1] < 32 and head[2] in TAGS


@dataclass
class _Graph:
    """The known facts of a graph's values, and the layers made so far."""

    shapes: dict[str, Shape]
    widths: dict[str, int]  # B per element
    weights: dict[str, str]  # value -> the initialiser that it is a view of
    dtypes: dict[str, str]  # initialiser that is float or becomes float -> type
    parts: dict[str, set[str]] = field(default_factory=dict)  # constant -> what it is computed from
    sources: dict[str, tuple[str, ...]] = field(default_factory=dict)  # value -> its layers
    layers: list[Layer] = field(default_factory=list)
    fixed: list[float] = field(default_factory=list)  # B of constants that each layer reads
    names: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)

    def nbytes(self, value: str) -> float:
        """Return the bytes of a value; 0 if its shape is not known."""
        return float(prod(self.shapes.get(value, (0,))) * self.widths.get(value, 4))


def read(content: Content, options: Options) -> Imported:
    """Make a layer of each computing node with its parameters; a view belongs to its input."""
    model = _inferred(content, options)
    graph = model.graph
    if len(graph.node) > NODES:
        raise CommschedError(f"{content.where}: the graph has more than {NODES} nodes")
    found = _known(graph)
    for number, node in enumerate(graph.node):
        _add(found, node, number, content.where)
    if not found.taken:
        raise CommschedError(
            f"{content.where}: no node has parameters; export the model with its weights"
            " (torch.onnx.export with export_params=True)"
        )
    batch = _batch(graph, found)
    layers = tuple(found.layers)
    if options.batch is not None and options.batch != batch:
        pairs = zip(layers, found.fixed, strict=True)
        layers = tuple(_times(layer, options.batch / batch, fixed) for layer, fixed in pairs)
    producer = f"{model.producer_name} {model.producer_version}".strip() or "an unknown exporter"
    source = f"ONNX model {content.where.rpartition('/')[2]} of {_plain(producer)}: {NOTE}"
    net = Net(name=options.name, layers=layers, batch=options.batch or batch, source=source)
    return Imported(net=net, notes=tuple(_notes(found, net)), data={"nodes": len(graph.node)})


def _inferred(content: Content, options: Options) -> Any:
    """Return the model with the shapes of all values."""
    if importlib.util.find_spec("onnx") is None:
        raise CommschedError(f"{content.where}: reading ONNX needs onnx; {install('onnx')}")
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import inliner, shape_inference

    try:
        model = onnx.load_model_from_string(content.data)
        if not all(isinstance(name, str) for name in _names(model)):
            raise ValueError("a name is not UTF-8")
        _set_sizes(model.graph, options, content.where)
        if model.functions:
            model = inliner.inline_local_functions(model)
        return shape_inference.infer_shapes(model, data_prop=True)
    except CommschedError:
        raise
    except (
        *(DecodeError, shape_inference.InferenceError),
        *(ValueError, RuntimeError, TypeError),
    ) as error:
        said = (str(error).splitlines() or ["it cannot be parsed"])[0][:200]
        raise CommschedError(f"{content.where}: not an ONNX model: {_plain(said)}") from None


def _names(model: Any) -> Iterator[object]:
    """Yield all names in the model; protobuf returns bytes for a name that is not UTF-8."""
    graph = model.graph
    yield from (model.producer_name, model.producer_version)
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield value.name
        yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
    for one in graph.initializer:
        yield one.name
    for node in graph.node:
        yield from (node.name, node.op_type, *node.input, *node.output)
        yield from (one.name for one in node.attribute)


def _set_sizes(graph: Any, options: Options, where: str) -> None:
    """Set the sizes of axes that only have a name."""
    constant, second = {one.name for one in graph.initializer}, _sequence_first(graph)
    sizes, named = dict(options.sizes), list[str]()
    for value in graph.input:
        if value.name in constant:
            continue
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if axis.HasField("dim_value") and axis.dim_value > 0:
                continue
            name = axis.dim_param or f"{value.name}.{place}"
            if place == (value.name in second):
                sizes.setdefault(name, options.batch or 1)
            if name not in sizes:
                raise CommschedError(
                    f"{where}: axis {place} of input {value.name!r} has no size; give --size"
                    f" {_plain(name)}=N"
                )
            axis.dim_value = sizes[name]
            named.append(name)
    for name in options.sizes:
        if name not in named:
            raise CommschedError(
                f"{where}: --size {_plain(name)}: no input has an axis of that name without a size"
                + (nearest(name, named) or "; leave the option out")
            )


def _sequence_first(graph: Any) -> set[str]:
    """Return the values whose second axis is the batch, as recurrent nodes read them."""
    found = set[str]()
    for node in reversed(graph.node):
        if node.op_type in RECURRENT:
            if not any(one.name == "layout" and one.i for one in node.attribute):
                found.update(name for name in (node.input[0], *node.input[5:7]) if name)
        elif node.op_type in KEEP_AXES and not found.isdisjoint(node.output):
            found.update(node.input[: 2 if node.op_type == "Gather" else 1])
    return found


def _known(graph: Any) -> _Graph:
    """Collect shapes, types and parameters."""
    shapes, widths, dtypes = dict[str, Shape](), dict[str, int](), dict[str, str]()
    for value in (*graph.input, *graph.value_info, *graph.output):
        kind = value.type.tensor_type
        sizes = tuple(axis.dim_value for axis in kind.shape.dim)
        if kind.HasField("shape") and all(size > 0 for size in sizes):
            shapes[value.name] = sizes
        widths[value.name] = WIDTHS.get(kind.elem_type, 4)
        if kind.elem_type in FLOATS:
            dtypes[value.name] = FLOATS[kind.elem_type]
    weights = {one.name: one.name for one in graph.initializer}
    for one in graph.initializer:
        shapes[one.name], widths[one.name] = tuple(one.dims), WIDTHS.get(one.data_type, 4)
        dtypes.pop(one.name, None)
        if one.data_type in FLOATS:
            dtypes[one.name] = FLOATS[one.data_type]
    found = _Graph(shapes, widths, weights, dtypes)
    for value in graph.input:
        if value.name not in weights:
            found.sources[value.name] = ()
    return found


def _add(found: _Graph, node: Any, number: int, where: str) -> None:
    """Add a layer for a node that depends on an input of the model."""
    inputs, outputs = list(_read(node)), [name for name in node.output if name]
    active = [name for name in inputs if name in found.sources]
    if not active or node.op_type in STATIC:
        if node.op_type not in STATIC:  # a constant: a parameter, or a view of one
            _add_constant(found, node, inputs, outputs)
        return
    if node.op_type in SUBGRAPHS:
        raise CommschedError(
            f"{where}: node {_plain(node.name or node.op_type)!r} is a {node.op_type}, whose work"
            " depends on the data; export the model without control flow"
        )
    before = tuple(dict.fromkeys(layer for name in active for layer in found.sources[name]))
    if node.op_type in VIEWS:
        found.sources |= dict.fromkeys(outputs, before)
        return
    shape = next((found.shapes[name] for name in outputs if name in found.shapes), None)
    if shape is None:
        raise CommschedError(
            f"{where}: the shape of the output of node {_plain(node.name or str(number))!r}"
            f" ({_plain(node.op_type)}) is not known; give the sizes of all axes by --size, or"
            " export with fixed shapes"
        )
    layer = _layer(found, node, number, before, shape)
    found.layers.append(layer)
    found.sources |= dict.fromkeys(outputs, (layer.name,))


def _add_constant(found: _Graph, node: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Record a constant as a view of its only float input or of what it quantises, else as new."""
    roots = list(dict.fromkeys(found.weights[name] for name in inputs if name in found.weights))
    floats = [root for root in roots if root in found.dtypes]
    seen = roots[:1] if node.op_type in QUANTISED else floats
    for name in outputs:
        root = found.weights[name] = seen[0] if len(seen) == 1 else name
        found.parts.setdefault(root, set()).update(roots)
        if name in found.dtypes:
            found.dtypes.setdefault(root, found.dtypes[name])


def _read(node: Any) -> Iterator[str]:
    """Yield the values that a node reads, also within its branches or body."""
    yield from node.input
    for one in node.attribute:
        for inner in one.g.node:
            yield from _read(inner)


def _layer(found: _Graph, node: Any, number: int, before: tuple[str, ...], shape: Shape) -> Layer:
    tensors = tuple(_parameters(found, node))
    shapes = [found.shapes.get(name, ()) for name in node.input]
    attributes = {a.name: a.i if a.type == 2 else a.s for a in node.attribute}  # INT: 2
    work = flops(node.op_type, shapes, shape, attributes)
    made = sum(found.nbytes(name) for name in node.output if name)
    gathers = node.op_type == "Gather"  # moves only the rows that it reads
    operands = [name for name in list(node.input)[gathers:] if name]
    moved = made * (1 + gathers) + sum(map(found.nbytes, operands))
    found.fixed.append(sum(found.nbytes(name) for name in operands if name in found.weights))
    name = _plain(node.name or f"{node.op_type}_{number}")
    while name in found.names:
        name = f"{name[:180]}_{number}"
    found.names.add(name)
    return Layer(
        name=name,
        after=before,
        forward_flops=work,
        backward_flops=2 * work,
        forward_bytes=moved,
        backward_bytes=2 * moved,
        activation=made,
        output=made,
        tensors=tensors,
    )


def _parameters(found: _Graph, node: Any) -> Iterator[Tensor]:
    """Yield the parameters that no earlier node owns; a scalar in arithmetic is a constant."""
    for place in PARAMETERS.get(node.op_type, ()):
        value = node.input[place] if place < len(node.input) else ""
        root = found.weights.get(value, "")
        shape = (found.shapes[root] or (1,)) if root in found.shapes else ()
        least = 2 if node.op_type in ARITHMETIC else 1
        if root in found.taken or root not in found.dtypes or prod(shape) < least:
            continue
        found.taken.add(root)
        yield Tensor(name=_plain(root), shape=shape, dtype=found.dtypes[root])


def _batch(graph: Any, found: _Graph) -> int:
    """Return the batch: axis 0, or axis 1, of the first input that is not a parameter."""
    names = [one.name for one in graph.input if one.name in found.sources]
    second = _sequence_first(graph)
    sizes = (found.shapes.get(name, ())[name in second :] for name in names)
    return max(next((size[0] for size in sizes if size), 1), 1)


def _times(layer: Layer, factor: float, fixed: float) -> Layer:
    """Scale the work of a layer to another batch, but neither its parameters nor constant bytes."""
    moved = (layer.forward_bytes - fixed) * factor + fixed
    return replace(
        layer,
        forward_flops=layer.forward_flops * factor,
        backward_flops=layer.backward_flops * factor,
        forward_bytes=moved,
        backward_bytes=2 * moved,
        activation=layer.activation * factor,
        output=layer.output * factor,
    )


def _notes(found: _Graph, net: Net) -> Iterator[str]:
    """Return notes on what the graph does not tell."""
    trained, more = set[str](), set(found.taken)
    while more:
        trained |= more
        more = {part for root in more for part in found.parts.get(root, ())} - trained
    left = sorted((found.dtypes.keys() & set(found.weights.values())) - trained)
    left = [root for root in left if prod(found.shapes.get(root, ())) > 1]
    if left:
        yield (
            f"{len(left)} constants count as not trained (first: {_plain(left[0])}), such as the"
            " running means of BatchNorm"
        )
    names = [layer.name.rpartition("/")[2] for layer in net.layers if layer.tensors]
    if any(name.startswith("Gather") for name in names):  # PyTorch's names are paths
        yield "gradients of embeddings are taken as dense; state their sparsity in the net file"


def _plain(text: str) -> str:
    """Return a name with only printable characters."""
    return "".join(c if c.isprintable() else "?" for c in text)[:190] or "unnamed"


FORMATS.add("onnx")(Format("an ONNX model", recognises, read))
