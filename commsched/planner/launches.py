"""Buckets of whole tensors, and the plan with one launch per bucket."""

from collections.abc import Callable, Container, Iterator, Sequence

from commsched.net.bucket import Piece
from commsched.net.graph import Layer, Net
from commsched.plan.model import Launch, Plan
from commsched.planner.request import Request


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
    found: list[list[Piece]] = []
    room = 0.0
    for layer in reversed(layers):
        for tensor in reversed(layer.tensors):
            size = 4.0 * tensor.numel
            alone = tensor.name in forced
            if alone or size > room or not found:
                found.append([])
                room = first if first is not None and len(found) == 1 else limit
            found[-1].append(Piece(tensor.name, 0, tensor.numel))
            room = 0.0 if alone else room - size
    return found


def ready_after(net: Net) -> dict[str, tuple[int, str]]:
    """For each tensor the position and name of its layer."""
    return net.homes


def launches(request: Request, groups: list[list[Piece]], choose: Callable[..., Launch]) -> Plan:
    """A plan with one launch per bucket; `choose(launch)` fills in method and reason."""
    methods = [request.force.get(pieces[0].tensor, "") for pieces in groups]
    return request.plan([choose(launch) for launch in _launches(request, groups, methods)])


def with_methods(
    request: Request, groups: Sequence[Sequence[Piece]], methods: Sequence[str]
) -> Plan:
    """A plan with one launch per bucket, by a method each; without reasons."""
    return request.plan([*_launches(request, groups, methods)])


def _launches(
    request: Request, groups: Sequence[Sequence[Piece]], methods: Sequence[str]
) -> Iterator[Launch]:
    home, spread = ready_after(request.net), request.machine.nodes > 1
    for number, (pieces, method) in enumerate(zip(groups, methods, strict=True)):
        yield Launch(
            name=f"b{number}",
            pieces=tuple(pieces),
            after=min(home[piece.tensor] for piece in pieces)[1],
            method=method,
            stream="between" if spread else "inside",
            priority=number,
        )
