"""Simulated training steps whose exchanges all use given methods."""

from collections.abc import Mapping

from commsched.ir import Graph
from commsched.machine import Machine
from commsched.methods import find_method
from commsched.methods.direct import Direct
from commsched.plan import Launch, Piece, Plan
from commsched.planner import Request, make_plan
from commsched.planner.timing import iteration

UPDATED: Mapping[str, str] = {"overlap": "backward"}  # all parameters at the end of a step


def in_turn(graph: Graph, machine: Machine, method: str) -> float:
    """Seconds of a step that exchanges all gradients as one bucket after the backward pass."""
    launch = Launch(
        name="gradients",
        pieces=tuple(Piece(t.name, 0, t.numel) for t in graph.tensors.values()),
        after=graph.layers[0].name,
        method=method,
        stream="between",
    )
    return iteration(Plan(graph=graph, machine=machine, launches=(launch,), params=UPDATED))


def overlapped(graph: Graph, machine: Machine, methods: Mapping[str, str]) -> float:
    """Seconds of a step that exchanges each tensor by its method as soon as it is ready."""
    request = Request(
        graph=graph, machine=machine, params=UPDATED, force=methods, lossy=_lossy(methods)
    )
    return iteration(make_plan(request, "per-tensor"))


def _lossy(methods: Mapping[str, str]) -> tuple[str, ...]:
    """The codecs and methods among them that lose something."""
    found = {find_method(name) for name in set(methods.values())}
    names = (m.codec.name if isinstance(m, Direct) else m.name for m in found if not m.lossless)
    return tuple(sorted(names))


def computing(graph: Graph, machine: Machine) -> float:
    """Seconds of the forward and the backward pass alone."""
    return sum(sum(graph.seconds(layer, machine.device)) for layer in graph.layers)
