"""Cells of a validation: a net, scaled to a fabric, with one method for all buckets."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from commsched.cost.price import price
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method
from commsched.machine.model import Machine
from commsched.net import file as net_file
from commsched.net.bucket import BucketSpec
from commsched.net.graph import Net, Tensor
from commsched.net.sparsity import Sparsity
from commsched.plan.model import Launch, Plan
from commsched.planner.launches import buckets, launches
from commsched.planner.request import Request

NETS = ("vgg16", "resnet50", "lstm", "bert-base", "gpt2")
# Family -> its method; these run with every net on every fabric.
CROSSED = {
    "native": "native+dense",
    "ring": "ring+dense",
    "hierarchical": "hierarchical+dense",
    "fp16": "ring+fp16",
    "coo": "all-gather+coo",
    "zen": "zen",
}
# Family -> its method; these run with one net per fabric, in turn.
ROTATED = {
    "dsar": "dsar",
    "omnireduce": "omnireduce",
    "sparse-ps": "sparse-ps",
    "node-union": "node-union",
    "gtopk": "gtopk:0.01",
    "ok-topk": "ok-topk:0.01",
    "hitopk": "hitopk:0.01",
    "powersgd": "powersgd:2",
    "int8": "all-gather+quant:8",
    "fft": "all-gather+fft:0.15",
}
METHODS = CROSSED | ROTATED
DENSITY = 0.05  # of dense tensors in cells with a method for sparse tensors
DENSE_SECONDS = 0.2  # that one ring all-reduce of a net lasts: long enough to measure
SHARED_SECONDS = 0.1  # in shared memory, where coding lasts several times as long as copying
COMPUTE = 1.0  # seconds of compute per second of a ring all-reduce
BUCKETS = 8  # per net, at the most
LARGEST = 2**26  # most elements of a net, for links that seem to take no time per byte


class ValidationCell(NamedTuple):
    """One row of the table."""

    fabric: str
    net: str
    family: str  # a key of METHODS, or any method

    @property
    def method(self) -> str:
        """Return the method of the family."""
        return METHODS.get(self.family, self.family)

    @property
    def name(self) -> str:
        """A file's name."""
        return f"{self.net}-{self.family}"


def rotated(fabrics: Sequence[str], nets: Sequence[str]) -> list[ValidationCell]:
    """Return the cells of the families that run with one net per fabric."""
    return [
        ValidationCell(fabric, nets[(i + j) % len(nets)], family)
        for i, fabric in enumerate(fabrics)
        for j, family in enumerate(ROTATED)
    ]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How a net is scaled: elements and seconds."""

    numel: float
    seconds: float  # of compute


def fitting(net: str, machine: Machine, seconds: float = DENSE_SECONDS) -> Scale:
    """Return the scale at which a ring all-reduce of the net, and its compute, last `seconds`."""
    graph, ring = net_file.load(net), find_method("ring+dense")
    sizes = np.array([2.0, 4.0]) * 2**20  # elements
    short, long = (
        price(ring, BucketSpec.uniform(int(n)), machine, machine.everyone).seconds for n in sizes
    )
    per_element = (long - short) / (sizes[1] - sizes[0])
    numel = seconds / max(per_element, seconds / LARGEST)
    compute = sum(sum(graph.seconds(layer, machine.device)) for layer in graph.layers)
    return Scale(numel=numel / graph.numel, seconds=seconds * COMPUTE / compute)


def scaled(net: str, scale: Scale) -> Net:
    """Scale elements and compute of a shipped net."""
    return net_file.load(net).scaled(scale.numel, scale.seconds / scale.numel)


def make_plan(cell: ValidationCell, machine: Machine, scale: Scale) -> Plan:
    """Plan a cell: every bucket uses the family's method."""
    net = scaled(cell.net, scale)
    if _for_sparse(find_method(cell.method)):
        net = _sparse(net)
    request = Request(net=net, machine=machine)
    limit = 4.0 * net.numel / BUCKETS

    def choose(launch: Launch) -> Launch:
        return replace(launch, method=cell.method)

    made = launches(request, buckets(request, limit, limit), choose)
    return replace(made, planner="validate")


def _for_sparse(method: Method) -> bool:
    return method.lossless and not method.fixed


def _sparse(net: Net) -> Net:
    """Make the dense gradients of a net as sparse as after top-k."""
    law = Sparsity(law="uniform", density=DENSITY)

    def thinned(tensor: Tensor) -> Tensor:
        return replace(tensor, sparsity=law) if tensor.sparsity.law == "dense" else tensor

    return replace(
        net,
        layers=tuple(
            replace(layer, tensors=tuple(map(thinned, layer.tensors))) for layer in net.layers
        ),
    )
