"""Plans of `tensor` and `3d`: degrees, sums of activations, and sums or shards of gradients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from commsched.cost.shared_ports import alongside
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method, legal_methods
from commsched.exchange.sharded import options
from commsched.machine.model import Machine
from commsched.net.graph import Layer, Net
from commsched.net.tensor_cut import cut_net, degrees, sums
from commsched.plan.model import Launch, Param, Plan
from commsched.planner.frames.zero import gathered
from commsched.planner.launches import Priced, cheapest_of, stream_of
from commsched.planner.limits.memory import enough
from commsched.planner.message_codecs import timed, with_codec
from commsched.planner.pipelines import (
    Known,
    deep_enough,
    needed_by,
    possible,
    prepared,
    shape_of,
    stage_buckets,
    with_method,
)
from commsched.planner.planners.greedy import cheapest
from commsched.planner.registry import FRAMES, OUTLINES, Planner
from commsched.planner.request import Request
from commsched.program.gradient_teams import gradient_teams
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy, Stage, grid
from commsched.program.tensor_sums import SCATTERS, SPREADS
from commsched.program.units import GATHER
from commsched.units import nbytes

TENSOR = "tensor"
FLAT = "reduce-scatter", "all-gather"  # shards in the order of their owners
Costs = dict[tuple[object, ...], Priced]


def gridded(request: Request, planner: Planner) -> Plan:
    """Choose the degrees, then the cheapest method for each launch. No planner is asked."""
    return deep_enough(request, _gridded, "pipeline")


def _gridded(request: Request) -> Plan:
    strategy = STRATEGIES[request.strategy]
    assert isinstance(strategy, PipelineStrategy)
    plan = with_degrees(request, _gridded)
    stages, found = grid(plan, plan.params), list[Launch]()
    known: Known = {}
    costs: Costs = {}
    for stage in stages:
        found += _activations(plan, stage, costs)
        for bucket in _buckets(request, plan, stage):
            if plan.params["zero"] and stage.replicas > 1:
                found += _sharded(request, plan, bucket, costs)
            else:
                found.append(with_method(request, strategy, plan, bucket, known))
    return timed(request, replace(plan, launches=tuple(found)))


def with_degrees(request: Request, make: Callable[[Request], Plan] | None = None) -> Plan:
    """Return the plan without launches, with the wanted degrees or the first that fit.

    make: makes the plan with its launches; an error advises a memory limit that includes them.
    """
    size = request.machine.size
    given = STRATEGIES[request.strategy].defaults | dict(request.params)
    width = int(given["tensor"]) or _widest(request.net, request.machine)
    whole = len(request.net.layers)
    counts = [int(given.get("pipeline", 1))]
    if not counts[0]:
        per_stage = max(size // width, 1)
        counts = [k for k in range(1, min(per_stage, whole) + 1) if per_stage % k == 0]
        counts = possible(counts, given, whole)
    depths = [{"pipeline": count} if "pipeline" in given else {} for count in counts]
    made, need = prepared(request, [{**given, "tensor": width, **depth} for depth in depths])
    alone = request.memory is None and len(counts) == 1  # `plan` warns of its memory
    if alone or need <= request.room:
        return with_codec(request, made)
    need = needed_by(request, made, make, "tensor", "pipeline")
    raise CommschedError(_too_much(made, need, request.room))


def _widest(net: Net, machine: Machine) -> int:
    """Return the most ranks of a node that can share the layers of a net.

    Source: Narayanan et al., "Megatron-LM", SC 2021, takeaway 1: tensor parallelism up to the
    devices of a server, then pipelines.
    """
    if net.tensor > 1:
        return net.tensor
    nodes = set(machine.ranks_of_node)
    found = max(k for k in degrees(net, min(nodes)) if all(ranks % k == 0 for ranks in nodes))
    if found == 1 < min(nodes):
        cut_net(net, 2)  # raises an error that says why ranks cannot share a layer
    return found


def _too_much(plan: Plan, need: float, limit: float) -> str:
    """Say that a plan does not fit, and name parameters or a limit that would."""
    width, stages = plan.params["tensor"], plan.params.get("pipeline", 1)
    more = [
        f"{key}={value}"
        for key, value in (("zero", 1), ("recompute", 1))
        if not plan.params[key]
        and STRATEGIES[plan.strategy].memory(_with(plan, key, value)).total <= limit
    ]
    nearest = more[0] if more else enough(need)
    return (
        f"strategy {plan.strategy!r}: with tensor={width} and {stages} stages a rank needs"
        f" {nbytes(need)}, and {nbytes(limit)} are allowed; nearest: {nearest}"
    )


def _with(plan: Plan, key: str, value: Param) -> Plan:
    return replace(plan, params={**plan.params, key: value})


def _buckets(request: Request, plan: Plan, stage: Stage) -> list[Launch]:
    """Make the buckets of a stage; the gradients of a bucket are summed by the same ranks."""
    teams = gradient_teams(plan.net, stage)
    found = [bucket for team in teams for bucket in stage_buckets(request, plan, team)]
    return [
        replace(bucket, name=f"s{stage.number}/b{number}", priority=number)
        for number, bucket in enumerate(found)
    ]


def _activations(plan: Plan, stage: Stage, costs: Costs) -> Iterator[Launch]:
    """Make the launches that sum activations in a replica, for each number of elements."""
    if stage.width == 1:
        return
    layers: dict[int, Layer] = {}
    for layer in stage.layers:
        if sums(layer, False) or sums(layer, True):
            layers.setdefault(layer.summed, layer)
    codec = gathered(plan.net, "auto")
    for number, (count, layer) in enumerate(sorted(layers.items())):
        launch = Launch(
            name=f"s{stage.number}/t{number}",
            pieces=(),
            activations=count,
            after=layer.name,
            method="",
            stream=stream_of(plan.machine, stage.ranks[: stage.width]),
            payload="activation",
            group=stage.ranks,
            split=stage.replicas,
            purpose=TENSOR,
        )
        if plan.net.sequence == 1:
            yield _cheapest(plan, launch, _sums(plan, launch, codec), costs)
            continue
        yield _cheapest(plan, launch, options(SCATTERS, (codec,)), costs)
        again = replace(launch, name=f"{launch.name}/gather", purpose=GATHER)
        yield _cheapest(plan, again, options(SPREADS, (codec,)), costs)


def _sums(plan: Plan, launch: Launch, codec: str) -> list[Method]:
    """List the all-reduces of one phase that send activations in their own type."""
    methods = legal_methods(plan.group(launch), more=(codec,))
    spec, group = plan.spec(launch), plan.group(launch)
    return [m for m in methods if m.coding == codec and len(m.phases(spec, group)) == 1]


def _sharded(request: Request, plan: Plan, bucket: Launch, costs: Costs) -> Iterator[Launch]:
    """Make the launches that sum a bucket into shards, and gather its parameters."""
    if request.force or request.without:
        raise CommschedError(
            "--force and --method are for sums that every rank gets; zero=1 leaves shards of them"
        )
    reduce, gather = FLAT
    yield _cheapest(plan, bucket, options((reduce,), ("dense",)), costs)
    codec = gathered(plan.net, "auto")
    again = replace(
        bucket, name=f"{bucket.name}/gather", purpose=GATHER, payload="parameter", method=""
    )
    yield _cheapest(plan, again, options((gather,), (codec,)), costs)


def _cheapest(plan: Plan, launch: Launch, methods: Sequence[Method], costs: Costs) -> Launch:
    """Give a launch the cheapest of some methods; alike launches are priced once."""
    group, spec = plan.group(launch), plan.spec(launch)
    on = alongside(plan.machine, group)
    key = launch.purpose, spec.numel, shape_of(plan.machine, group), on.nic
    if key not in costs:
        costs[key] = cheapest([find_method(m.name) for m in methods], spec, on, group)
    return cheapest_of(launch, costs[key], exposed=True)


for name in ("tensor", "3d"):
    FRAMES.add(name)(gridded)
    OUTLINES.add(name)(with_degrees)
