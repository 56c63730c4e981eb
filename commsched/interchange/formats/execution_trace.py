"""Import of ExecutionTraceObserver traces of PyTorch: a step's operators, their work, no times."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import msgspec

from commsched.errors import CommschedError
from commsched.interchange import aten
from commsched.interchange.content import Content
from commsched.interchange.kineto_events import DTYPES, WIDTHS
from commsched.interchange.kineto_steps import GRADIENT, NODE, STEP
from commsched.interchange.passes import Backward, Forward, Gradient, Work, layers_of
from commsched.interchange.registry import FORMATS, Format, Imported, Options
from commsched.net.graph import Layer, Net

RECORD = (
    "record whole training steps with torch.profiler.profile(execution_trace_observer="
    "ExecutionTraceObserver().register_callback(FILE)), calling its step() after each"
)
OPERATOR, USER = 0, 7  # scopes of operators and of annotations
ALIAS = re.compile(r"Tensor\((\w)( -> \*)?\).*-> .*Tensor\(\1\)")  # matches the schema of a view
UNDEFINED = "nullptr (uninitialized)"
BYTES = WIDTHS | {"long int": 8, "short int": 2, "signed char": 1, "unsigned char": 1, "bool": 1}


class Values(msgspec.Struct):
    """Inputs or outputs of an operator."""

    shapes: list[Any] = []
    types: list[str] = []
    values: Any = ()


class Attribute(msgspec.Struct):
    """A named attribute of a node."""

    name: str
    value: Any = None


class Node(msgspec.Struct):
    """An operator or annotation; `ctrl_deps` is the number of its caller."""

    id: int
    name: str
    ctrl_deps: int = 0
    inputs: Values = msgspec.field(default_factory=Values)
    outputs: Values = msgspec.field(default_factory=Values)
    attrs: list[Attribute] = []

    def number(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        found = self._fact(name)
        return found if isinstance(found, int) else default

    @property
    def moves(self) -> bool:
        """Tell whether the node moves memory: it is an operator, but no allocation and no view."""
        operator = self.number("scope", 0) == OPERATOR and "::" in self.name
        schema = str(self._fact("op_schema"))
        return operator and self.name not in aten.VIEWS and not ALIAS.search(schema)

    def _fact(self, name: str) -> Any:
        return next((one.value for one in self.attrs if one.name == name), None)

    def tensors(self, values: Values) -> list[Gradient]:
        """Return shapes and types of the tensors among inputs or outputs; lists are left out."""
        return [
            Gradient(tuple(shape), DTYPES.get(kind[7:-1].lower(), kind[7:-1]))
            for shape, kind in zip(values.shapes, values.types, strict=False)
            if kind.startswith("Tensor(") and isinstance(shape, list)
            if all(isinstance(size, int) and 0 <= size < 2**53 for size in shape)
        ]


class TraceHead(msgspec.Struct):
    """The fields that every schema version has."""

    schema: str


class ExecutionTrace(msgspec.Struct):
    """The whole file."""

    nodes: list[Node]


def recognises(content: Content) -> bool:
    """Tell whether a file may be a trace of ExecutionTraceObserver."""
    return content.head[:1] == b"{" and b'"schema"' in content.head


def read(content: Content, options: Options) -> Imported:
    """Make a net of the last step that has a backward pass."""
    what = "a trace of ExecutionTraceObserver"
    schema = content.decode(TraceHead, what).schema
    if "chakra" not in schema:  # older schemas write nodes differently
        raise CommschedError(
            f"{content.where}: schema {schema[:40]!a} is older than 1.0.2-chakra; {RECORD}"
        )
    trace = content.decode(ExecutionTrace, what)
    nodes = sorted(trace.nodes, key=lambda node: node.id)
    marks = [i for i, node in enumerate(nodes) if node.name.startswith(STEP)]
    bounds = [*(marks or [0]), len(nodes)]
    windows = [nodes[a:b] for a, b in pairwise(bounds)]
    passes = [_passes(window) for window in windows]
    layers = next((found for f, b in reversed(passes) if (found := layers_of(f, b))), [])
    if not layers:
        raise CommschedError(
            f"{content.where}: no step has a forward and a backward pass with gradients of"
            f" parameters; {RECORD}"
        )
    made = tuple(
        Layer(
            name=layer.name,
            after=(layers[i - 1].name,) if i else (),
            forward_flops=layer.forward.flops,
            backward_flops=layer.backward.flops,
            forward_bytes=layer.forward.nbytes,
            backward_bytes=layer.backward.nbytes,
            tensors=layer.tensors,
        )
        for i, layer in enumerate(layers)
    )
    source = (
        f"execution trace {content.where.rpartition('/')[2]}: flops of matrix products,"
        " convolutions and attention; memory traffic: inputs and outputs of each operator"
    )
    net = Net(name=options.name, layers=made, batch=options.batch or 1, source=source)
    return Imported(net=net, data={"steps": len(windows)})


def _passes(nodes: Sequence[Node]) -> tuple[list[Forward], list[Backward]]:
    """Return the two passes of a step."""
    by_id = {node.id: node for node in nodes}
    top: dict[int, int] = {}  # node -> the operator that no other operator called
    parts: dict[int, list[Node]] = {}
    moved = _traffic(nodes)
    for node in nodes:  # callers precede their callees
        if node.number("scope", 0) == USER:
            continue
        caller = by_id.get(node.ctrl_deps)
        top[node.id] = top.get(caller.id, node.id) if caller else node.id
        parts.setdefault(top[node.id], []).append(node)
    forward, backward = [], list[Backward]()
    for first, some in parts.items():
        name = by_id[first].name
        work = Work(0.0, sum(map(_flops, some)), moved[first])
        if name.startswith(NODE):
            number = max(node.number("seq_id", -1) for node in some[:2])
            gradients = tuple(_gradients(some))
            backward.append(Backward(name.removeprefix(NODE), number, work, gradients))
        elif not backward:
            numbers = tuple(n for node in some if (n := node.number("seq_id", -1)) >= 0)
            forward.append(Forward(name.removeprefix("aten::"), "", numbers, work))
    return forward, backward


def _gradients(nodes: Sequence[Node]) -> Iterator[Gradient]:
    for node in nodes:
        if node.name == GRADIENT:
            for one in node.tensors(node.inputs)[:1]:
                if one.dtype != UNDEFINED:
                    yield one if one.dtype in WIDTHS else one._replace(dtype="float32")


def _flops(node: Node) -> float:
    shapes = [one.shape or () for one in node.tensors(node.inputs)]
    made = [one.shape or () for one in node.tensors(node.outputs)]
    return aten.flops(node.name, shapes, made[0] if made else (), node.inputs.values)


def _traffic(nodes: Sequence[Node]) -> dict[int, float]:
    """Return the bytes that each operator moves: its own, or the sum over its callees if larger.

    A matrix product calls a copy of its bias, and a norm calls an allocation: the callees of both
    move less than the inputs and outputs of the operator itself.
    """
    below: dict[int, float] = {}
    moved: dict[int, float] = {}
    for node in reversed(nodes):  # callees follow their callers
        values = [*node.tensors(node.inputs), *node.tensors(node.outputs)] if node.moves else []
        own = sum(float(prod(one.shape or ()) * BYTES.get(one.dtype, 4)) for one in values)
        moved[node.id] = max(own, below.get(node.id, 0.0))
        below[node.ctrl_deps] = below.get(node.ctrl_deps, 0.0) + moved[node.id]
    return moved


FORMATS.add("execution-trace")(
    Format("a trace of PyTorch's ExecutionTraceObserver", recognises, read, axes=False)
)
