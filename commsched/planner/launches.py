"""Buckets of whole tensors, and the plan with one launch per bucket."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from commsched.machine.model import Machine
from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net, Tensor
from commsched.plan.model import Launch, Plan, Reason
from commsched.planner.request import Request
from commsched.planner.space import Unit

T = TypeVar("T", Tensor, Unit)
Priced = list[tuple[float, str]]  # seconds and names of methods, cheapest first


def buckets(request: Request, limit: float, first: float | None = None) -> list[list[Piece]]:
    """Fill buckets of at most `limit` bytes with whole tensors in backward order.

    A tensor larger than the limit gets a bucket of its own, and so does a forced one. The first
    bucket may have a smaller limit, so that the exchange begins early (as PyTorch's DDP does).
    """
    return filled_buckets(request.net.layers, limit, first, request.force)


def filled_buckets(
    layers: Sequence[Layer], limit: float, first: float | None, forced: Container[str]
) -> list[list[Piece]]:
    """Fill buckets with the tensors of `layers`, which are in forward order; see `buckets`."""
    tensors = (tensor for layer in reversed(layers) for tensor in reversed(layer.tensors))
    groups = filled(tensors, lambda tensor: tensor.name in forced, limit, first)
    return [[Piece(tensor.name, 0, tensor.numel) for tensor in group] for group in groups]


def filled(
    items: Iterable[T], alone: Callable[[T], bool], limit: float, first: float | None
) -> list[list[T]]:
    """Fill buckets with neighbours, as `buckets` does; an item that is `alone` has its own."""
    found: list[list[T]] = []
    room = 0.0
    for item in items:
        size, own = 4.0 * item.numel, alone(item)
        if own or size > room or not found:
            found.append([])
            room = first if first is not None and len(found) == 1 else limit
        found[-1].append(item)
        room = 0.0 if own else room - size
    return found


def completed(net: Net, pieces: Iterable[Piece]) -> tuple[int, str]:
    """Return the position and name of the layer whose backward completes a bucket."""
    homes = net.homes
    return min(homes[piece.tensor] for piece in pieces)


def stream_of(machine: Machine, ranks: Iterable[int]) -> str:
    """Return the stream of an exchange among some ranks."""
    node = machine.node_of_rank
    return "between" if len({node[rank] for rank in ranks}) > 1 else "inside"


def cheapest_of(launch: Launch, priced: Priced, *, exposed: bool = False) -> Launch:
    """Give a launch the first of its priced methods, with the reason.

    exposed: nothing hides the exchange, so its margin delays the iteration.
    """
    (best, name), (second, runner_up) = [*priced, (0.0, "")][:2]
    margin = max(second - best, 0.0) if exposed else 0.0
    reason = Reason(seconds=best, runner_up=runner_up, runner_up_seconds=second, margin=margin)
    return replace(launch, method=name, reason=reason)


def launches(request: Request, groups: list[list[Piece]], choose: Callable[..., Launch]) -> Plan:
    """Make a plan with one launch per bucket; `choose(launch)` fills in method and reason."""
    methods = [request.force.get(pieces[0].tensor, "") for pieces in groups]
    return request.plan([choose(launch) for launch in _launches(request, groups, methods)])


def with_methods(
    request: Request, groups: Sequence[Sequence[Piece]], methods: Sequence[str]
) -> Plan:
    """Make a plan with one launch per bucket, by the method of the same index; no reasons."""
    return request.plan([*_launches(request, groups, methods)])


def _launches(
    request: Request, groups: Sequence[Sequence[Piece]], methods: Sequence[str]
) -> Iterator[Launch]:
    stream = "between" if request.machine.nodes > 1 else "inside"
    for number, (pieces, method) in enumerate(zip(groups, methods, strict=True)):
        yield Launch(
            name=f"b{number}",
            pieces=tuple(pieces),
            after=completed(request.net, pieces)[1],
            method=method,
            stream=stream,
            priority=number,
        )
