"""Plans of `expert`: how many ranks share experts, routes of tokens, and sums of gradients."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from commsched.cost.alongside import alongside
from commsched.errors import CommschedError
from commsched.exchange.experts import routes
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method
from commsched.machine.model import Group
from commsched.net.bucket import Piece
from commsched.net.expert_part import expert_degrees, expert_part, is_expert
from commsched.net.graph import Net
from commsched.plan.model import Launch, Plan
from commsched.planner.frames.zero import gathered
from commsched.planner.launches import filled_buckets, ready_after
from commsched.planner.limits.memory import fits, needed
from commsched.planner.pipelines import chosen
from commsched.planner.planners.greedy import COUNTS, Asked, cheapest_all, useful, without_choices
from commsched.planner.registry import FRAMES, Planner
from commsched.planner.request import Request
from commsched.planner.search.timing import iteration
from commsched.program.expert_groups import COMBINE, DISPATCH, ExpertGroups
from commsched.program.registry import STRATEGIES
from commsched.simulate.exchange_costs import Known

SOLE = "ring+dense"  # of one replica: nothing travels
Open = tuple[Launch, list[Method]]  # a launch without a method, and those that it may have
Costs = dict[tuple[object, ...], list[tuple[float, str]]]  # methods, cheapest first


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
        degrees = [k for k in expert_degrees(net, size) if size % k == 0]
    limit = request.machine.device.memory if request.memory is None else request.memory
    limited = replace(request, memory=limit)
    plans: list[Plan] = []
    costs: Costs = {}
    for degree in degrees:
        plans += _plans(replace(request, net=expert_part(net, degree, size)), degree, costs)
    fitting = [plan for plan in plans if fits(limited, plan)]
    known: Known = {}
    some = fitting or [min(plans, key=needed)]  # `plan` warns of it, or `make_plan` refuses it
    timed = [replace(plan, iteration=iteration(plan, known)) for plan in some]
    return min(timed, key=lambda plan: plan.iteration)


def _routed(net: Net, capacity: float, zipf: float) -> Net:
    """Give the experts of a net another capacity or load, if one is wanted."""
    more = {"capacity": capacity} if capacity else {}
    if zipf >= 0.0:
        more |= {"zipf": zipf, "load": ()}  # type: ignore[dict-item]
    layers = tuple(
        replace(x, experts=replace(x.experts, **more)) if x.experts else x  # type: ignore[arg-type]
        for x in net.layers
    )
    return replace(net, layers=layers)


def _plans(request: Request, degree: int, costs: Costs) -> Iterator[Plan]:
    """Plan buckets of some sizes for one degree."""
    settings = STRATEGIES[request.strategy].settings(request.plan())
    plan = replace(request.plan(), params={**settings, "expert": degree})
    total = 4.0 * max(request.net.numel, 1)
    sizes = [total / count for count in COUNTS] if request.bucket is None else [request.bucket]
    sends = list(_sends(plan, ExpertGroups(plan)))
    sums = [list(_sums(request, plan, size)) for size in sizes]
    every = {len(some): some for some in reversed(sums)}  # the first of as many launches
    _price(plan, chain(sends, *every.values()), costs)
    for some in sums:
        if every.get(len(some)) is some:
            launches = (_cheapest(plan, *one, costs) for one in chain(sends, some))
            yield replace(plan, launches=tuple(launches))


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
                stream=_stream(plan, group[: groups.width]),
                payload="activation",
                group=group,
                split=split,
                purpose=purpose,
            )
            yield launch, [*routes(plan.group(launch), codec)]


def _sums(request: Request, plan: Plan, size: float) -> Iterator[Open]:
    """Make the launches of gradients: of experts among their replicas, others among all ranks."""
    groups, home = ExpertGroups(plan), ready_after(plan.net)
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
    found.sort(key=lambda one: -min(home[piece.tensor] for piece in one[1])[0])
    for number, (apart, pieces) in enumerate(found):
        group, split = groups.replicas if apart else ((), 1)
        ranks = group[: len(group) // split] if apart else plan.machine.everyone.ranks
        launch = Launch(
            name=f"{'e' if apart else 'b'}{number}",
            pieces=tuple(pieces),
            after=min(home[piece.tensor] for piece in pieces)[1],
            method="",
            stream=_stream(plan, ranks),
            priority=number,
            group=group,
            split=split,
        )
        forced = request.force.get(pieces[0].tensor, "")
        yield launch, _options(request, plan, launch, forced, known)


def _options(
    request: Request, plan: Plan, launch: Launch, forced: str, known: dict[Group, list[Method]]
) -> list[Method]:
    """List the methods that may sum a bucket; `known`: of each group."""
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


def _price(plan: Plan, some: Iterable[Open], costs: Costs) -> None:
    """Price the methods of launches together; alike launches are priced once."""
    wanted: dict[tuple[object, ...], Asked] = {}
    for launch, methods in some:
        key, group = _key(plan, launch, methods), plan.group(launch)
        if key not in costs and key not in wanted:
            on = alongside(plan.machine, group) if launch.in_teams else plan.machine
            wanted[key] = Asked(methods, plan.spec(launch), on, group)
    costs |= zip(wanted, cheapest_all([*wanted.values()]), strict=True)


def _cheapest(plan: Plan, launch: Launch, methods: list[Method], costs: Costs) -> Launch:
    """Give a launch the cheapest of its methods."""
    return chosen(launch, costs[_key(plan, launch, methods)])


def _key(plan: Plan, launch: Launch, methods: list[Method]) -> tuple[object, ...]:
    """Return what tells the price of a launch."""
    ranks, names = plan.group(launch).ranks, tuple(method.name for method in methods)
    return plan.spec(launch), ranks, bool(launch.group), names


def _stream(plan: Plan, ranks: tuple[int, ...]) -> str:
    node = plan.machine.node_of_rank
    return "between" if len({node[rank] for rank in ranks}) > 1 else "inside"


FRAMES.add("expert")(shared)
