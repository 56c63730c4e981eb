"""Plans of `zero1`, `zero2` and `zero3`: units of layers, and the cheapest way to shard each."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from commsched.coding.registry import CODECS
from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, lossy_name
from commsched.exchange.sharded import GATHERS, HYBRID, LEVELS, SUMS, options
from commsched.net.bucket import BucketSpec, Piece
from commsched.net.graph import Layer, Net
from commsched.plan.model import Launch, Plan
from commsched.planner.fastest_plan import fastest
from commsched.planner.launches import Priced, cheapest_of
from commsched.planner.limits.memory import fits, refusal
from commsched.planner.planners.greedy import COUNTS, cheapest, useful
from commsched.planner.registry import FRAMES, Planner
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.program.units import GATHER, REGATHER

STEMS = {"": "g", GATHER: "p", REGATHER: "r"}  # purpose -> first letter of a launch's name
APART = tuple(name for name in SUMS if name != HYBRID)  # sums in which one rank has each shard
TYPES = {"float16": "fp16", "bfloat16": "bf16"}  # type of the parameters -> codec
DROPPED = 8  # fewest units that zero3 tries: fewer would gather most of the net at once
Costs = dict[tuple[str, bool, BucketSpec], Priced]  # by purpose, whether lane by lane, and bucket


def sharded(request: Request, planner: Planner) -> Plan:
    """Try some sizes of units; keep the fastest plan that fits. No planner is asked."""
    _check(request)
    total = 4.0 * request.net.numel
    fewest = DROPPED if request.strategy == "zero3" else 1
    sizes = [total / count for count in COUNTS if count >= fewest]
    if request.bucket is not None:
        sizes = [request.bucket]
    priced: Costs = {}
    tried = product(sizes, _ways(request))
    plan = fastest(request, (_plan(request, size, levels, priced) for size, levels in tried))
    limited = replace(request, memory=request.room)
    if request.memory is None and not fits(limited, plan):
        raise refusal(limited, plan)
    return plan


def _check(request: Request) -> None:
    """Refuse what cannot be sharded, and options that this strategy does not follow."""
    who = f"strategy {request.strategy!r}"
    if not request.net.tensors:
        raise CommschedError(f"net {request.net.name!r} has no tensors for {who} to shard")
    for flag, value in (("--force", request.force), ("--method", request.without)):
        if value:
            raise CommschedError(
                f"{flag} is for sums that every rank gets; {who} leaves shards of them: use --allow"
                " CODEC, and --param gather=CODEC"
            )


def _ways(request: Request) -> tuple[bool, ...]:
    """List the orders of shards to try: lane by lane (True), rank by rank (False), or both."""
    node, everyone = request.params.get("shard") == "node", request.machine.everyone
    sizes = {len(members) for members in everyone.members}
    two = len(everyone.members) > 1 and len(sizes) == 1 and sizes != {1}
    return (False, True) if two and not node else (False,)


def _plan(request: Request, size: float, levels: bool, priced: Costs) -> Plan:
    """Plan units of at most `size` B as float32, but of at least one layer."""
    plan = request.plan()
    groups = list(_units(request.net.layers, size))
    # Units that fit into the window stay gathered from forward to backward.
    ahead = STRATEGIES[request.strategy].settings(plan).get("prefetch")
    again = [] if ahead is None else groups[: max(0, len(groups) - (int(ahead) + 1) // 2)]
    launches = [
        launch
        for purpose, some in (("", groups[::-1]), (GATHER, groups), (REGATHER, again[::-1]))
        for launch in _launches(plan, request, purpose, some, levels, priced)
    ]
    return replace(plan, launches=tuple(launches))


def _units(layers: tuple[Layer, ...], size: float) -> Iterator[list[Layer]]:
    """Cut the layers that have tensors into units of neighbours, in forward order."""
    unit: list[Layer] = []
    for layer in (layer for layer in layers if layer.tensors):
        if unit and 4.0 * sum(t.numel for x in (*unit, layer) for t in x.tensors) > size:
            yield unit
            unit = []
        unit.append(layer)
    yield unit


def _launches(
    plan: Plan,
    request: Request,
    purpose: str,
    groups: list[list[Layer]],
    levels: bool,
    priced: Costs,
) -> Iterator[Launch]:
    """Make a launch for each unit, by the cheapest method."""
    settings, everyone = STRATEGIES[plan.strategy].settings(plan), plan.machine.everyone
    node = settings["shard"] == "node" and everyone.lanes > 0  # raises if nodes differ
    inside = node and purpose != ""
    group = plan.team(np.array(everyone.members[0])) if inside else everyone
    ways = GATHERS if purpose else (HYBRID,) if node else APART
    ways = tuple(name for name in ways if (name in LEVELS) == levels)
    codec = gathered(request.net, str(settings["gather"]))
    methods = options(ways, (codec,) if purpose else _codecs(request))
    for number, unit in enumerate(groups):
        pieces = tuple(Piece(t.name, 0, t.numel) for layer in unit for t in layer.tensors)
        spec = BucketSpec.of(pieces, request.net.tensors)
        key = purpose, levels, spec
        if key not in priced:
            priced[key] = cheapest(useful(methods, spec), spec, request.machine, group)
        launch = Launch(
            name=f"{STEMS[purpose]}{number}",
            pieces=pieces,
            after=unit[0].name,
            method="",
            stream="between" if len(group.members) > 1 else "inside",
            payload="parameter" if purpose else "gradient",
            priority=number,
            among="node" if inside else "all",
            purpose=purpose,
        )
        yield cheapest_of(launch, priced[key])


def gathered(net: Net, wanted: str) -> str:
    """Return the codec of gathered parameters; "auto": one that loses nothing of their type."""
    kinds = {TYPES.get(tensor.dtype, "dense") for tensor in net.tensors.values()}
    return wanted if wanted != "auto" else kinds.pop() if len(kinds) == 1 else "dense"


def _codecs(request: Request) -> tuple[str, ...]:
    """List the codecs of gradients that a request allows."""
    lossless = [name for name, codec in CODECS.items() if codec.lossless]
    lossy = [lossy_name(name) for name in request.lossy]
    codecs = [name for name in lossy if name.partition(":")[0] not in METHODS]
    return tuple(dict.fromkeys((*lossless, *codecs)))


for name in ("zero1", "zero2", "zero3"):
    FRAMES.add(name)(sharded)
