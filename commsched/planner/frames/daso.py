"""Plans of strategy `daso`: gradients inside the nodes by any planner, parameters between them."""

from collections.abc import Iterator
from dataclasses import replace

from commsched.cost.price import method_seconds
from commsched.exchange.broadcast import BROADCAST
from commsched.exchange.method import chooses
from commsched.machine.model import Group, Machine, resized
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Launch, Plan, Reason
from commsched.planner.averages import averages, check
from commsched.planner.registry import FRAMES, Planner
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES


@FRAMES.add("daso")
def daso(request: Request, planner: Planner) -> Plan:
    """Plan one node with the planner, and add three exchanges of all parameters."""
    check(request)
    settings = STRATEGIES["daso"].settings(request.plan())
    node = resized(request.machine, nodes=1)
    params = {"overlap": "backward", "optimizer": settings["optimizer"]}
    alone = replace(request, machine=node, strategy="sync", params=params, played=None)
    inside = planner(replace(alone, without=alone.without | _deciding(alone)))
    gradients = tuple(
        replace(launch, among="node", stream="inside", reason=_alone(launch))
        for launch in inside.launches
    )
    group, first = _peers(request.machine), len(gradients)
    every, lag = max(int(settings["gs"]), 1), int(settings["wait"])
    codec = str(settings["blocking"])
    blocking = [
        replace(launch, among="peers", purpose="blocking")
        for launch in averages(request, group, codec, "s", first)
    ]
    cycling = [
        replace(launch, among="peers", purpose="cycling", every=every, lag=lag)
        for launch in averages(request, group, "dense", "g", first)
    ]
    spreads = _spreads(request, cycling, node)
    launches = (*gradients, *blocking, *cycling, *spreads)
    return replace(request.plan(launches), planner=inside.planner)


def _deciding(request: Request) -> frozenset[str]:
    """Return the methods whose exchanges depend on data: nodes could decide differently."""
    group = request.machine.everyone
    spec, methods = BucketSpec.uniform(group.size), request.methods(group)
    return frozenset(m.name for m in methods if chooses(m.phases(spec, group)))


def _peers(machine: Machine) -> Group:
    """Return the group of the first rank of every node."""
    return machine.group(members[0] for members in machine.everyone.members)


def _alone(launch: Launch) -> Reason | None:
    """Return a launch's reason without margins, which hold for the iteration of one node only."""
    if launch.reason is None:
        return None
    return replace(launch.reason, margin=0.0, opposite="", opposite_margin=0.0)


def _spreads(request: Request, cycling: list[Launch], node: Machine) -> Iterator[Launch]:
    """Yield the broadcast of each chunk inside the nodes."""
    known: dict[BucketSpec, float] = {}  # by content, s
    for number, launch in enumerate(cycling):
        spec = BucketSpec.of(launch.pieces, request.net.tensors)
        if spec.content not in known:
            known[spec.content] = method_seconds(BROADCAST, spec, node, node.everyone)
        yield replace(
            launch,
            name=f"c{number}",
            method=BROADCAST.name,
            stream="inside",
            among="node",
            purpose="spread",
            reason=Reason(seconds=known[spec.content]),
        )
