"""Launches that average parameters: in chunks, by the cheapest all-reduce of their group."""

from collections.abc import Iterator

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.exchange.pair import Pair, illegal, route
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Net
from commsched.plan.model import Launch
from commsched.planner.launches import Priced, cheapest_of
from commsched.planner.planners.greedy import cheapest
from commsched.planner.request import Request
from commsched.schedule.rounds import Goal

CHUNK = 10_000_000  # elements; Coquelin et al., arXiv 2104.05588


def chunks(net: Net) -> list[tuple[Piece, ...]]:
    """Cut all parameters, in the order of the layers, after every `CHUNK` elements."""
    found: list[tuple[Piece, ...]] = []
    pieces: list[Piece] = []
    room = CHUNK
    for tensor in net.tensors.values():
        start = 0
        while start < tensor.numel:
            stop = min(tensor.numel, start + room)
            pieces.append(Piece(tensor.name, start, stop))
            room -= stop - start
            start = stop
            if not room:
                found.append(tuple(pieces))
                pieces, room = [], CHUNK
    return [*found, tuple(pieces)] if pieces else found


def all_reduces(request: Request, group: Group, codec: str) -> Iterator[Method]:
    """Yield the all-reduces that can sum values of a codec over a group."""
    for method in request.methods(group):
        if method.compresses:
            continue
        schedule = route(method.family, group)
        if schedule.goal is Goal.ALL_REDUCE and illegal(schedule, CODECS[codec]) is None:
            yield Pair(method.family, codec)


def check(request: Request) -> None:
    """Refuse a net without tensors, and methods that the user forces for gradients."""
    if not request.net.tensors:
        raise CommschedError(
            f"net {request.net.name!r} has no tensors for {request.strategy!r} to average"
        )
    if request.force:
        raise CommschedError(
            f"--force is for gradients among all ranks or a stage's; strategy {request.strategy!r}"
            " plans without it"
        )


def averages(
    request: Request, group: Group, codec: str, stem: str, priority: int
) -> Iterator[Launch]:
    """Yield a launch per chunk, among `group` or groups of the same shape."""
    methods = list(all_reduces(request, group, codec))
    if not methods:
        raise CommschedError(
            f"strategy {request.strategy!r} averages parameters by an all-reduce, and none of the"
            " allowed methods is one; nearest: --method ring+dense"
        )
    known: dict[BucketSpec, Priced] = {}  # by content: most chunks are equal
    for number, pieces in enumerate(chunks(request.net)):
        spec = BucketSpec.of(pieces, request.net.tensors)
        if spec.content not in known:
            known[spec.content] = cheapest(methods, spec, request.machine, group)
        launch = Launch(
            name=f"{stem}{number}",
            pieces=pieces,
            after=request.net.layers[0].name,
            method="",
            stream="between",
            payload="parameter",
            priority=priority + number,
        )
        yield cheapest_of(launch, known[spec.content])
