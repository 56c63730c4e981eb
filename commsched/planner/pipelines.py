"""Plans with stages: the number of stages, and the gradient sums among each stage's replicas."""

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
NEAREST, ALIKE = 4, 4.0  # a bucket is priced by the NEAREST best methods of one within ALIKE times
ALONE = "ring"  # the collective of a single replica, which exchanges nothing


def pipelined(request: Request, planner: Planner) -> Plan:
    """Choose the stages, then the cheapest method for each bucket among a stage's replicas.

    No planner is asked: all exchanges of a stage begin together, after its last computation.
    """
    return deep_enough(request, _pipelined, "stages")


def deep_enough(request: Request, make: Callable[[Request], Plan], key: str) -> Plan:
    """Make a plan; use more stages if stages and exchanges do not fit into memory together.

    key: the parameter for the number of stages, if the strategy has it. If no plan fits, the one
    that needs least is returned if the user gave a limit, else the first.
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
    """Make a plan without launches, of the wanted number of stages or the least that fits.

    The codec of messages is chosen. make: makes the plan with its launches; an error advises a
    memory limit that includes them.
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
    """Return the plan, without launches, of the first choice that fits, or the last; its bytes."""
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
    """Return the most bytes on a rank, of a plan with the launches that `make` would give it.

    The launches are those of the set of methods that needs least.
    keys: the parameters whose values the plan has chosen.
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
    """Return those numbers of stages that the interleaving allows."""
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
    """Return the largest number of stages that divides the ranks and leaves each a layer."""
    size = request.machine.size
    layers = sum(not is_head(layer.name) for layer in request.net.layers)
    return max(k for k in range(1, min(size, layers) + 1) if size % k == 0)


def stage_buckets(request: Request, plan: Plan, stage: Stage) -> list[Launch]:
    """Make the buckets of a stage, without methods: a single one unless the user gives a size."""
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
    """Return a key that is equal for groups of equal prices; nodes may have links of their own."""
    if group.levels:
        return group.ranks
    return group.nodes if machine.overrides else group.members


def _options(
    request: Request, strategy: PipelineStrategy, spec: BucketSpec, group: Group, forced: str
) -> list[Method]:
    """List the methods that a bucket may have."""
    if forced:
        return [find_method(forced)]
    if group.size == 1:
        return [find_method(f"{ALONE}+{strategy.codec or 'dense'}")]
    wanted = replace(request, lossy=(*request.lossy, *filter(None, [strategy.codec])))
    return [m for m in useful(list(wanted.methods(group)), spec) if _carries(m, strategy)]


def _carries(method: Method, strategy: PipelineStrategy) -> bool:
    """Tell whether a method sends values in the type in which the strategy keeps them."""
    if not strategy.codec:
        return True
    return method.coding == strategy.codec
