"""Plans with stages: how many, and how the replicas of each sum their gradients."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from commsched.cost.shared_ports import alongside
from commsched.errors import CommschedError
from commsched.exchange.method import Method
from commsched.exchange.registry import find_method
from commsched.machine.model import Group, Machine
from commsched.net.bucket import BucketSpec
from commsched.plan.model import Launch, Param, Plan
from commsched.planner.launches import (
    Priced,
    cheapest_of,
    completed,
    filled_buckets,
    stream_of,
)
from commsched.planner.limits.memory import enough, method_sets, needed
from commsched.planner.message_codecs import timed, with_codec
from commsched.planner.planners.greedy import cheapest, useful, without_choices
from commsched.planner.registry import Planner
from commsched.planner.request import Request
from commsched.program.registry import STRATEGIES
from commsched.program.stages import PipelineStrategy, Stage, grid, is_head
from commsched.units import nbytes

# Bucket, its group's shape and forced method -> seconds and names of methods, cheapest first.
Known = dict[tuple[object, ...], Priced]
NEAREST, ALIKE = 4, 4.0  # methods that are priced for a bucket of about the size of another
ALONE = "ring"  # of one replica: nothing travels


def pipelined(request: Request, planner: Planner) -> Plan:
    """Choose the stages, then the cheapest method for each bucket among a stage's replicas.

    No planner is asked: all exchanges of a stage begin together, after its last computation.
    """
    return deep_enough(request, _pipelined, "stages")


def deep_enough(request: Request, make: Callable[[Request], Plan], key: str) -> Plan:
    """Make a plan; one of more stages if what its exchanges take does not fit beside its stages.

    key: the parameter that is the number of stages, if the strategy has it. If none fits, the one
    that needs least is returned under a limit that was asked for, else the first.
    """
    first = make(request)
    if key not in first.params or request.params.get(key) or needed(first) <= request.room:
        return first
    found = [first]
    for count in range(int(first.params[key]) + 1, most_stages(request) + 1):
        with suppress(CommschedError):  # the net cannot be cut into this many stages
            found.append(make(replace(request, params={**request.params, key: count})))
            if needed(found[-1]) <= request.room:
                return found[-1]
    return first if request.memory is None else min(found, key=needed)


def _pipelined(request: Request) -> Plan:
    strategy = STRATEGIES[request.strategy]
    assert isinstance(strategy, PipelineStrategy)
    plan = staged(request, _pipelined)
    launches: list[Launch] = []
    known: Known = {}
    for stage in grid(plan, plan.params):
        buckets = stage_buckets(request, plan, stage)
        launches += [with_method(request, strategy, plan, each, known) for each in buckets]
    return timed(request, replace(plan, launches=tuple(launches)))


def staged(request: Request, make: Callable[[Request], Plan] | None = None) -> Plan:
    """A plan without launches, of as many stages as wanted, or as fit; messages are coded.

    make: makes the plan with its launches, which a limit that is advised has room for.
    """
    strategy = STRATEGIES[request.strategy]
    assert isinstance(strategy, PipelineStrategy)
    given = STRATEGIES[request.strategy].settings(request.plan())
    layers = sum(not is_head(layer.name) for layer in request.net.layers)
    size = request.machine.size
    counts = [k for k in range(1, most_stages(request) + 1) if size % k == 0]
    if given["stages"]:
        counts = [int(given["stages"])]
    elif not strategy.fewest:
        counts = counts[-1:]
    else:
        counts = possible(counts, given, layers)
    plan, need = prepared(request, [{**given, "stages": count} for count in counts])
    if len(counts) == 1 or need <= request.room:
        return with_codec(request, plan)
    need = needed_by(request, plan, make, "stages")
    chunks, m = given.get("interleave", 1), given["microbatches"]
    turns = "" if chunks == 1 else f", with interleave={chunks} and microbatches={m}"
    raise CommschedError(
        f"strategy {request.strategy!r}: with {counts[-1]} stages a rank needs {nbytes(need)}, and"
        f" {nbytes(request.room)} are allowed; more stages are not possible on {size} ranks and"
        f" {layers} layers{turns}; nearest: {enough(need)}"
    )


def prepared(request: Request, choices: Sequence[Mapping[str, Param]]) -> tuple[Plan, float]:
    """Return the plan without launches by the first parameters that fit, or the last; its bytes."""
    strategy = STRATEGIES[request.strategy]
    assert isinstance(strategy, PipelineStrategy)
    for choice in choices:
        net, params = strategy.prepare(request.net, request.machine, choice)
        plan = replace(request, net=net, params=params).plan()
        need = needed(plan)
        if need <= request.room:
            break
    return plan, need


def needed_by(
    request: Request, plan: Plan, make: Callable[[Request], Plan] | None, *keys: str
) -> float:
    """Bytes on the rank that needs most, of a plan and the launches that `make` would give it.

    Of its methods those count that need least.
    keys: the parameters that the plan has settled.
    """
    if make is None:
        return needed(plan)
    settled = {key: plan.params[key] for key in keys if key in plan.params}
    found: list[float] = []
    alone = replace(request, memory=None, params={**request.params, **settled})
    refused: CommschedError | None = None
    for without in dict.fromkeys(method_sets(request)):
        try:
            found.append(needed(make(replace(alone, without=without))))
        except CommschedError as error:  # the strategy cannot do with these methods alone
            refused = refused or error
    if refused is not None and not found:
        raise refused
    return min(found)


def possible(counts: Sequence[int], settings: Mapping[str, Param], layers: int) -> list[int]:
    """Return the depths of a pipeline that the interleaving of its stages allows."""
    chunks = int(settings.get("interleave", 1))
    m = int(settings["microbatches"])
    found = [k for k in counts if chunks == 1 or (k > 1 and m % k == 0 and k * chunks <= layers)]
    if not found:
        raise CommschedError(
            f"interleave={chunks}: no number of ranks in a pipeline, two or more, divides {m}"
            f" microbatches and has {chunks} times as many stages in {layers} layers; nearest:"
            " interleave=1"
        )
    return found


def most_stages(request: Request) -> int:
    """The most stages that divide the ranks, of at least one layer each."""
    size = request.machine.size
    layers = sum(not is_head(layer.name) for layer in request.net.layers)
    return max(k for k in range(1, min(size, layers) + 1) if size % k == 0)


def stage_buckets(request: Request, plan: Plan, stage: Stage) -> list[Launch]:
    """The buckets of a stage, without their methods: one, unless the user gives a size."""
    stream = stream_of(plan.machine, stage.alike[: stage.replicas])
    limit = float("inf") if request.bucket is None else request.bucket
    found = []
    for number, pieces in enumerate(filled_buckets(stage.layers, limit, None, request.force)):
        found.append(
            Launch(
                name=f"s{stage.number}/b{number}",
                pieces=tuple(pieces),
                after=completed(plan.net, pieces)[1],
                method="",
                stream=stream,
                priority=number,
                group=stage.alike,
                split=stage.width,
            )
        )
    return found


def with_method(
    request: Request, strategy: PipelineStrategy, plan: Plan, launch: Launch, known: Known
) -> Launch:
    """Give a launch its cheapest method, or the one that is forced."""
    spec, group = plan.spec(launch), plan.group(launch)
    forced = request.force.get(launch.pieces[0].tensor, "")
    on = alongside(plan.machine, group)
    key = spec, shape_of(plan.machine, group), on.nic, launch.split > 1, forced
    if key not in known:
        options = _options(request, strategy, spec, group, forced)
        if launch.split > 1 and not forced:
            options = without_choices(options, spec, group)
        if not options:
            kind = f" of {strategy.codec} values" if strategy.codec else ""
            raise CommschedError(
                f"strategy {request.strategy!r}: no allowed method can sum bucket {launch.name!r}"
                f"{kind}; nearest: --method ring+{strategy.codec or 'dense'}"
            )
        for (other, *rest), found in known.items():
            assert isinstance(other, BucketSpec)
            alike = 1 / ALIKE < other.numel / spec.numel < ALIKE
            if tuple(rest) == key[1:] and alike and (other.density < 1) == (spec.density < 1):
                options = [find_method(name) for _, name in found[:NEAREST]]
        known[key] = cheapest(options, spec, on, group)
    return cheapest_of(launch, known[key], exposed=True)


def shape_of(machine: Machine, group: Group) -> object:
    """Return what groups of equal prices have in common; a node may have a link of its own."""
    if group.levels:
        return group.ranks
    return group.nodes if machine.overrides else group.members


def _options(
    request: Request, strategy: PipelineStrategy, spec: BucketSpec, group: Group, forced: str
) -> list[Method]:
    """The methods that a bucket may have."""
    if forced:
        return [find_method(forced)]
    if group.size == 1:
        return [find_method(f"{ALONE}+{strategy.codec or 'dense'}")]
    wanted = replace(request, lossy=(*request.lossy, *filter(None, [strategy.codec])))
    return [m for m in useful(list(wanted.methods(group)), spec) if _carries(m, strategy)]


def _carries(method: Method, strategy: PipelineStrategy) -> bool:
    """Whether a method sends values as the strategy keeps them."""
    if not strategy.codec:
        return True
    return method.coding == strategy.codec
