"""The layers that each layer reads, from the graph of torch.export."""

import io
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from commsched.torch.parameters import bare_name

Edges = dict[str, tuple[str, ...]]  # layer -> layers whose outputs it reads, in the given order


def edges_of(
    model: Any, inputs: tuple[Any, ...], named: Mapping[str, Any], owners: Mapping[str, list[str]]
) -> Edges | str:
    """Return the layers that each layer reads, or the reason why torch.export fails.

    `owners`: layer -> its parameters, in the order of layers in the net. The output of an operation
    without parameters on one layer's output counts as that layer's output. An operation on several
    layers' outputs with fewer values out than in, such as a sum, belongs to the last of the layers,
    which then also reads the others; a concatenation does not. A layer reads only earlier layers.
    """
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")  # torch.export also prints the trace so far
            graph = torch.export.export(model, tuple(inputs), dict(named), strict=False)
    except Exception as error:  # a model's code may raise any exception while it is traced
        return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
    return _Walk(graph, owners).edges()


class _Walk:
    """The nodes of a graph in order, each with the layers that its value comes from."""

    def __init__(self, exported: Any, owners: Mapping[str, list[str]]) -> None:
        self._place = {layer: place for place, layer in enumerate(owners)}
        self._home = {name: layer for layer, names in owners.items() for name in names}
        self._nodes = list(exported.graph.nodes)
        signature = exported.graph_signature
        self._parameters = {n: bare_name(p) for n, p in signature.inputs_to_parameters.items()}
        self._called = {layer for node in self._nodes if (layer := self._entered(node))}
        self._of: dict[Any, frozenset[str]] = {}  # node -> layers
        self._reads: dict[str, set[str]] = {layer: set() for layer in owners}

    def edges(self) -> Edges:
        """Return the layers that each layer reads."""
        for node in self._nodes:
            self._of[node] = self._layers(node) if node.op == "call_function" else frozenset()
        return {
            layer: tuple(
                name
                for name in self._place
                if name in reads and self._place[name] < self._place[layer]
            )
            for layer, reads in self._reads.items()
        }

    def _entered(self, node: Any) -> str | None:
        """Return the innermost layer whose module a node is part of."""
        stack = node.meta.get("nn_module_stack") or {}
        paths = [bare_name(path) for path, _ in stack.values()]
        return next((path for path in reversed(paths) if path in self._place), None)

    def _layers(self, node: Any) -> frozenset[str]:
        sources = [self._of[one] for one in node.all_input_nodes if self._of[one]]
        read = frozenset[str]().union(*sources)
        owner = self._by_parameter(node) or self._entered(node)
        if owner is not None and read and all(layer.startswith(f"{owner}.") for layer in read):
            return read  # a module passes on the output of one inside it
        if owner is None and len(set(sources)) > 1 and _shrinks(node, self._of):
            owner = max(read, key=self._place.__getitem__)
        if owner is None:
            return read
        self._reads[owner] |= read - {owner}
        return frozenset({owner})

    def _by_parameter(self, node: Any) -> str | None:
        """Return the layer of a parameter that the node reads, if its module is never called."""
        for one in node.all_input_nodes:
            home = self._home.get(self._parameters.get(one.name, ""))
            if home is not None and home not in self._called:
                return home
        return None


def _shrinks(node: Any, of: Mapping[Any, frozenset[str]]) -> bool:
    """Tell whether a node has fewer output values than inputs from layers; False if unknown.

    For example, the number of rows that an expert reads depends on the values.
    """
    read = sum(_numel(one) for one in node.all_input_nodes if of[one])
    return bool(statically_known_true(_numel(node) < read))


def _numel(node: Any) -> int:
    value = node.meta.get("val")
    values: Sequence[Any] = value if isinstance(value, list | tuple) else (value,)
    return sum(v.numel() for v in values if isinstance(v, torch.Tensor))
