"""Plans of `expert`: how many ranks share experts, routes of tokens, and sums of gradients."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from commsched.cost.shared_ports import alongside
from commsched.errors import CommschedError
from commsched.exchange.experts import routes
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method
from commsched.machine.model import Group
from commsched.net.bucket import Piece
from commsched.net.expert_part import expert_degrees, expert_part, is_expert
from commsched.net.graph import Net
from commsched.plan.model import Launch, Plan
from commsched.planner.fastest_plan import fastest
from commsched.planner.frames.zero import gathered
from commsched.planner.launches import Priced, cheapest_of, completed, filled_buckets, stream_of
from commsched.planner.planners.greedy import COUNTS, Asked, cheapest_all, useful, without_choices
from commsched.planner.registry import FRAMES, Planner
from commsched.planner.request import Request
from commsched.program.expert_groups import COMBINE, DISPATCH, ExpertGroups
from commsched.program.registry import STRATEGIES

SOLE = "ring+dense"  # the method of a single replica, which exchanges nothing
Open = tuple[Launch, list[Method]]  # a launch without a method, and those that it may have
Costs = dict[tuple[object, ...], Priced]


def shared(request: Request, planner: Planner) -> Plan:
    """Try degrees and some sizes of buckets; keep the fastest plan that fits. No planner is asked.

    The number of replicas of an expert, and with it the group that sums gradients, differs from
    degree to degree.
    """
    settings = STRATEGIES[request.strategy].settings(request.plan())
    net = _routed(request.net, float(settings["capacity"]), float(settings["zipf"]))
    size = request.machine.size
    degrees = [int(settings["expert"])]
    if not degrees[0]:
        degrees = [k for k in expert_degrees(net, size)[::-1] if size % k == 0]
    parts = [replace(request, net=expert_part(net, degree, size)) for degree in degrees]
    return fastest(request, _plans(parts, degrees))


def _routed(net: Net, capacity: float, zipf: float) -> Net:
    """Give the experts of a net another capacity or load if the user wants one."""
    more = {"capacity": capacity} if capacity else {}
    if zipf >= 0.0:
        more |= {"zipf": zipf, "load": ()}  # type: ignore[dict-item]
    layers = tuple(
        replace(x, experts=replace(x.experts, **more)) if x.experts else x  # type: ignore[arg-type]
        for x in net.layers
    )
    return replace(net, layers=layers)


def _plans(requests: Sequence[Request], degrees: Sequence[int]) -> Iterator[Plan]:
    """Plan one bucket, then several, for each degree; requests: one for each degree's net."""
    costs: Costs = {}
    plans = [_outline(*each) for each in zip(requests, degrees, strict=True)]
    sends = [list(_sends(plan, ExpertGroups(plan))) for plan in plans]
    for count in COUNTS if requests[0].bucket is None else COUNTS[:1]:
        found = []
        for request, plan, some in zip(requests, plans, sends, strict=True):
            size = request.bucket or 4.0 * max(request.net.numel, 1) / count
            found += [(plan, [*some, *_sums(request, plan, size)])]
        _price(found, costs)
        for plan, launches in found:
            chosen = (
                cheapest_of(launch, costs[_key(plan, launch, methods)], exposed=True)
                for launch, methods in launches
            )
            yield replace(plan, launches=tuple(chosen))


def _outline(request: Request, degree: int) -> Plan:
    """Return the plan of a degree without its launches."""
    settings = STRATEGIES[request.strategy].settings(request.plan())
    return replace(request.plan(), params={**settings, "expert": degree})


def _sends(plan: Plan, groups: ExpertGroups) -> Iterator[Open]:
    """Make the two launches of each layer of experts."""
    if groups.width == 1:
        return
    codec = gathered(plan.net, str(plan.params["send"]))
    group, split = groups.teams
    for layer, experts in plan.net.experts_of.items():
        for purpose in (DISPATCH, COMBINE):
            launch = Launch(
                name=f"{layer}/{purpose}",
                pieces=(),
                activations=experts.count * (1 + experts.slots * experts.width),
                after=layer,
                method="",
                stream=stream_of(plan.machine, group[: groups.width]),
                payload="activation",
                group=group,
                split=split,
                purpose=purpose,
            )
            yield launch, [*routes(plan.group(launch), codec)]


def _sums(request: Request, plan: Plan, size: float) -> Iterator[Open]:
    """Make the launches of gradients: of experts among their replicas, others among all ranks."""
    groups, net = ExpertGroups(plan), plan.net
    divided = groups.width > 1
    kinds = {t.name: divided and is_expert(x, t) for x in plan.net.layers for t in x.tensors}
    found: list[tuple[bool, list[Piece]]] = []
    for apart in (False, True):
        layers = [
            replace(x, experts=None, tensors=tuple(t for t in x.tensors if kinds[t.name] == apart))
            for x in plan.net.layers
        ]
        found += [(apart, some) for some in filled_buckets(layers, size, None, request.force)]
    known: dict[Group, list[Method]] = {}
    found.sort(key=lambda one: -completed(net, one[1])[0])
    for number, (apart, pieces) in enumerate(found):
        group, split = groups.replicas if apart else ((), 1)
        ranks = group[: len(group) // split] if apart else plan.machine.everyone.ranks
        launch = Launch(
            name=f"{'e' if apart else 'b'}{number}",
            pieces=tuple(pieces),
            after=completed(net, pieces)[1],
            method="",
            stream=stream_of(plan.machine, ranks),
            priority=number,
            group=group,
            split=split,
        )
        forced = request.force.get(pieces[0].tensor, "")
        yield launch, _options(request, plan, launch, forced, known)


def _options(
    request: Request, plan: Plan, launch: Launch, forced: str, known: dict[Group, list[Method]]
) -> list[Method]:
    """List the methods that may sum a bucket; known: the methods of each group so far."""
    group = plan.group(launch)
    if forced or group.size == 1:
        return [find_method(forced or SOLE)]
    if group not in known:
        known[group] = list(request.methods(group))
    found = useful(known[group], plan.spec(launch))
    if launch.split > 1:
        found = without_choices(found, plan.spec(launch), group)
    if not found:
        raise CommschedError(
            f"strategy {request.strategy!r}: no allowed method can sum bucket {launch.name!r};"
            " nearest: --method ring+dense"
        )
    return found


def _price(plans: Iterable[tuple[Plan, list[Open]]], costs: Costs) -> None:
    """Price the methods of launches together; alike launches are priced once."""
    wanted: dict[tuple[object, ...], Asked] = {}
    for plan, (launch, methods) in ((plan, one) for plan, some in plans for one in some):
        key, group = _key(plan, launch, methods), plan.group(launch)
        if key not in costs and key not in wanted:
            on = alongside(plan.machine, group) if launch.in_teams else plan.machine
            wanted[key] = Asked(methods, plan.spec(launch), on, group)
    costs |= zip(wanted, cheapest_all([*wanted.values()]), strict=True)


def _key(plan: Plan, launch: Launch, methods: list[Method]) -> tuple[object, ...]:
    """Return a key that is equal for launches of equal prices."""
    ranks, names = plan.group(launch).ranks, tuple(method.name for method in methods)
    return plan.spec(launch), ranks, bool(launch.group), names


FRAMES.add("expert")(shared)
