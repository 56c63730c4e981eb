"""Tensor parallelism, and its product with pipelines and sharded optimiser state: `3d`."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.exchange.method import resolved
from commsched.exchange.registry import phases_of
from commsched.exchange.sharded import GATHERS, PREFIX
from commsched.machine.model import Machine, resized
from commsched.net.graph import Net
from commsched.net.tensor_cut import cut_net, degrees, sums
from commsched.plan.model import Launch, Param, Plan
from commsched.program import recompute
from commsched.program import stages as pipeline
from commsched.program.draft import Draft
from commsched.program.flushed_pipeline import (
    StageWork,
    draft_stages,
    last_turns,
    most_kept,
    one_forward_one_backward,
)
from commsched.program.gradient_teams import gradient_teams
from commsched.program.launch_ops import (
    OPTIMIZER,
    OPTIMIZERS,
    apply_op,
    beside_buckets,
    check_teams_alike,
    exchange_ops,
    launches_of_layers,
    update_traffic,
)
from commsched.program.message_coding import MESSAGES, coding_of
from commsched.program.model import After, Kind, Turn
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage
from commsched.program.strategy import Memory
from commsched.program.tensor_sums import (
    SCATTERS,
    SPREADS,
    Segment,
    StageSums,
    segment_end,
    segments,
    visits,
)
from commsched.program.units import GATHER

MASTER = 4.0  # B of an element's float32 copy, which the owner of its shard updates
TENSOR = "tensor"  # purpose of the sums of activations


class StageLaunches(NamedTuple):
    """The launches of a stage."""

    activations: StageSums
    reduces: list[int]  # of gradients, by priority
    gathers: list[int]  # of parameters, in the same order; []: every rank updates all


def _widths(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List the numbers of ranks, two or more in each node, that can share the layers of a net."""
    nodes = set(machine.ranks_of_node)
    found = [k for k in degrees(net, min(nodes)) if k > 1 and all(n % k == 0 for n in nodes)]
    if not found:
        raise CommschedError(f"no two ranks of a node can share the layers of net {net.name!r}")
    return [*found]


def _depths(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List the numbers of stages, two or more, that divide the replicas of a tensor group."""
    return pipeline.degrees(net, resized(machine, machine.size // int(before["tensor"]), 1), before)


def _shares_tokens(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List whether ranks may share tokens: each has equally many."""
    width = int(before["tensor"])
    return [0, 1] if all(layer.summed % width == 0 for layer in net.layers if layer.cut) else [0]


def _pieces(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List the number of microbatches of a step with a batch for each rank."""
    stages, width = pipeline.degrees_of(before)
    return [stages * width]


class Grid(pipeline.PipelineStrategy):
    """Ranks in a grid of data x pipeline x tensor; rank = (stage D + replica) T + place.

    The T ranks of a tensor group share each cut layer: a pair of matrices, the first by columns,
    the second by rows, needs one all-reduce of its outputs forward and one of its inputs' gradient
    backward, so that a transformer block has four in each microbatch, which nothing hides. With
    b s h activations of a microbatch in E B each, l blocks on a rank and m microbatches a rank
    sends

        4 l m 2 (T - 1) / T b s h E          B in tensor groups,
        2 (D - 1) / D 4 Psi / (T P)          B of gradients, and of parameters under zero=1

    Psi = parameters; P = pipeline, T = tensor, D = ranks / (T P). Stages follow 1F1B with a flush,
    interleaved if interleave > 1: see strategy `1f1b`.
    zero=1: each of D replicas owns a shard of the optimiser's state and of the float32 parameters,
    sums of gradients end in shards, and updated parameters are gathered before the next step.
    sequence=1: ranks of a tensor group share the tokens of what is not cut. Each all-reduce becomes
    a reduce-scatter and an all-gather along the tokens; norms, dropouts, what crosses a stage and
    all kept activations are divided by T. Each rank keeps its tokens of what enters columns, which
    one more all-gather a pair brings back in backward, so that 4 becomes 5 in the formula of bytes
    (Megatron-LM hides that all-gather behind a product, which is not done here). Gradients of
    tensors that are not cut are then summed over all D T ranks of a stage. T divides the tokens.
    tensor=0: as many ranks of a node as can share the layers. pipeline=0: as few stages as fit.
    Embedding and head are shared by rows of the vocabulary; the few numbers that a shared
    cross-entropy exchanges cost nothing here.
    Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053; Narayanan et al., "Efficient
    large-scale language model training on GPU clusters using Megatron-LM", SC 2021; zero:
    Rajbhandari et al., "ZeRO", SC 2020; sequence: Korthikanti et al., "Reducing activation
    recomputation in large transformer models", MLSys 2023.
    """

    fewest, codec = True, ""

    def __init__(
        self,
        name: str,
        microbatches: int,
        depth: Mapping[str, Parameter],
        chunks: Mapping[str, Parameter],
    ) -> None:
        self.name = name
        self.parameters: Mapping[str, Parameter] = {
            "tensor": Parameter(0, Range(0, pipeline.MOST), _widths, learns=False),
            **depth,
            "sequence": Parameter(0, (0, 1), _shares_tokens, learns=False),
            "zero": Parameter(0, (0, 1), (0, 1), learns=False),
            "microbatches": pipeline.PARAMETERS["microbatches"]._replace(
                default=microbatches, tries=_pieces
            ),
            **chunks,
            **recompute.PARAMETERS,
            "optimizer": OPTIMIZER,
        }

    def prepare(
        self, net: Net, machine: Machine, settings: Mapping[str, Param]
    ) -> tuple[Net, dict[str, Param]]:
        width = pipeline.degrees_of(settings)[1]
        return cut_net(net, width, bool(settings.get("sequence", 0))), dict(settings)

    def draft(self, plan: Plan) -> Draft:
        settings, stages, m = self.cut(plan)
        _check_cut(plan, stages[0].width, int(settings["sequence"]))
        launches = launches_of(plan, stages)

        @lru_cache
        def parts(stage: int, backward: bool) -> tuple[Segment, ...]:
            own, count = stages[stage], int(settings["recompute"])
            cuts = recompute.cuts_of(own, count) if count else ()
            return segments(plan, launches[stage].activations, visits(own.layers, cuts, backward))

        def before(stage: Stage) -> list[After]:
            gathers = launches[stage.number].gathers
            return [After(exchange_ops(plan, i, After(""))[-1].name, 1) for i in gathers]

        draft = Draft([held[0].ranks for held in pipeline.dealt(stages)], coding_of(plan))
        work = StageWork(
            0.0, segments=lambda stage, turn: parts(stage.number, turn.backward), before=before
        )
        draft_stages(draft, stages, one_forward_one_backward, m, work)
        traffic = update_traffic(settings["optimizer"])
        for stage, last in last_turns(stages, one_forward_one_backward, m):
            ends = _ends(last, stage, parts(stage.number, True))
            _finish(draft, plan, stage, launches[stage.number], ends, traffic)
        return draft

    def memory(self, plan: Plan) -> Memory:
        settings, stages, m = self.cut(plan)
        per_element = float(OPTIMIZERS[str(settings["optimizer"])][0])

        def state(team: Stage, sharded: bool) -> float:
            if not settings["zero"]:
                return per_element * team.numel
            return (per_element + MASTER) * team.numel / (team.replicas if sharded else 1)

        def of(held: Sequence[Stage]) -> Memory:
            order, (first, *_) = one_forward_one_backward, held
            kept = [recompute.kept(plan.net, stages, stage.number, settings) for stage in held]
            teams = [team for stage in held for team in gradient_teams(plan.net, stage)]
            launches = (first.width > 1) * (1 + (plan.net.sequence > 1))  # of each size
            layers = [layer for stage in held for layer in stage.layers]
            return Memory(
                parameters=float(sum(stage.nbytes for stage in held)),
                gradients=float(sum(stage.nbytes for stage in held)),
                optimizer=sum(state(team, first.replicas > 1) for team in teams),
                activations=most_kept(order, len(stages), m, first.number, kept),
                buckets=4.0 * sum(team.numel for team in teams if team.replicas > 1)
                + 4.0 * sum(sum(_summed(stage)) for stage in held) * launches,
                **beside_buckets(plan, launches_of_layers(plan, layers)),
            )

        return max(map(of, pipeline.dealt(stages)), key=lambda found: found.total)


def _summed(stage: Stage) -> set[int]:
    """Return the numbers of activations that the ranks of a replica sum in a stage."""
    return {x.summed for x in stage.layers for back in (False, True) if sums(x, back)}


def _check_cut(plan: Plan, width: int, sequence: int) -> None:
    """Refuse a net that is cut for other parameters than the plan's."""
    who, net = f"strategy {plan.strategy!r}", plan.net
    if net.tensor != width:
        raise CommschedError(
            f"{who}: net {net.name!r} is cut for {net.tensor} ranks, but tensor is {width}"
        )
    if net.sequence != (width if sequence else 1):
        raise CommschedError(
            f"{who}: {net.sequence} ranks share the tokens of net {net.name!r}, but sequence is"
            f" {sequence}"
        )


def _ends(last: Turn, stage: Stage, parts: Sequence[Segment]) -> dict[str, After]:
    """Return for each layer the computation after which its gradients are complete."""
    places = {name: place for place, part in enumerate(parts) for name in part.done}
    return {
        name: segment_end(last, stage.number, place, len(parts)) for name, place in places.items()
    }


def _finish(
    draft: Draft,
    plan: Plan,
    stage: Stage,
    launches: StageLaunches,
    ends: Mapping[str, After],
    traffic: float,
) -> None:
    """Sum a stage's gradients over its replicas, update, and gather the others' parameters."""
    last: dict[int, After] = {}
    for index in launches.reduces:
        last[index] = ends[plan.launches[index].after]
        if plan.group(plan.launches[index]).size > 1:
            ops = exchange_ops(plan, index, last[index])
            draft.add(stage.number, *ops)
            last[index] = After(ops[-1].name)
    for index in launches.reduces:
        leaves = resolved(phases_of(plan, index)[0]).leaves if launches.gathers else 1.0
        draft.add(stage.number, apply_op(plan, index, traffic * leaves, last[index]))
    for index, reduce in zip(launches.gathers, launches.reduces, strict=False):
        updated = After(f"{plan.launches[reduce].name}/{Kind.APPLY}")
        draft.add(stage.number, *exchange_ops(plan, index, updated))


def launches_of(plan: Plan, stages: Sequence[Stage]) -> list[StageLaunches]:
    """List each stage's launches; refuse launches that the strategy cannot use."""
    teams = [team for stage in stages for team in gradient_teams(plan.net, stage)]
    home = {t.name: team for team in teams for layer in team.layers for t in layer.tensors}
    by_layer = {layer.name: stage.number for stage in stages for layer in stage.layers}
    found = [StageLaunches(StageSums({}, {}), [], []) for _ in stages]
    order = sorted(range(len(plan.launches)), key=lambda i: plan.launches[i].priority)
    for index in order:
        launch = plan.launches[index]
        where = f"strategy {plan.strategy!r}: launch {launch.name!r}"
        if launch.payload == "activation":
            number = by_layer.get(launch.after, -1)
            wanted = launch.group, stages[number].replicas
        else:
            team = home[launch.pieces[0].tensor]
            number, wanted = team.number, (team.alike, team.width)
            if any(home[piece.tensor] is not team for piece in launch.pieces):
                others = any(home[piece.tensor].number != number for piece in launch.pieces)
                whose = "of several stages" if others else "that other ranks sum"
                raise CommschedError(f"{where} has tensors {whose}; allowed is one team's")
        if number < 0 or (launch.group, launch.split) != wanted:
            raise CommschedError(f"{where} must exchange in the teams of one stage, in their order")
        if launch.every != 1 or launch.lag != 0:
            raise CommschedError(f"{where} must exchange in every step, and merge at once")
        if launch.split > 1:
            check_teams_alike(plan, index, where)
        _sort_in(found[number], index, launch, where)
    for stage, mine in zip(stages, found, strict=True):
        _check_whole(plan, stage, mine)
    return found


def _sort_in(into: StageLaunches, index: int, launch: Launch, where: str) -> None:
    """Note a launch by its purpose."""
    kind = launch.purpose, launch.payload
    if kind == (TENSOR, "activation"):
        into.activations.sums[launch.activations] = index
    elif kind == (GATHER, "activation"):
        into.activations.gathers[launch.activations] = index
    elif kind == ("", "gradient"):
        into.reduces.append(index)
    elif kind == (GATHER, "parameter"):
        into.gathers.append(index)
    else:
        raise CommschedError(f"{where} has purpose {launch.purpose!r} for {launch.payload}s")


def _check_whole(plan: Plan, stage: Stage, mine: StageLaunches) -> None:
    """Refuse a stage without a sum that it needs, and shards without their gather."""
    who, zero = f"strategy {plan.strategy!r}: stage {stage.number}", plan.params.get("zero", 0)
    wanted = _summed(stage) if stage.width > 1 else set()
    _check_activations(plan, who, wanted, mine.activations)
    pairs = [[plan.launches[i].pieces for i in some] for some in (mine.reduces, mine.gathers)]
    sharded = bool(zero) and stage.replicas > 1
    if pairs[1] != (pairs[0] if sharded else []):
        raise CommschedError(f"{who} has other gathers than zero={zero} needs")
    for index in (*mine.reduces, *mine.gathers):
        method = plan.launches[index].method
        right = method.startswith(PREFIX) == sharded
        gathers = method.removeprefix(PREFIX).partition("+")[0] in GATHERS
        if not right or (sharded and gathers != (index in mine.gathers)):
            raise CommschedError(
                f"{who}: launch {plan.launches[index].name!r} has method {method!r}, which"
                f" zero={zero} cannot use"
            )


def _check_activations(plan: Plan, who: str, wanted: set[int], mine: StageSums) -> None:
    """Refuse a stage without an exchange of activations that it needs, or with others."""
    shared = plan.net.sequence > 1
    missing = wanted - mine.sums.keys()
    if missing:
        raise CommschedError(f"{who} has no launch that sums {min(missing)} activations")
    if mine.gathers.keys() != (wanted if shared else set()):
        raise CommschedError(f"{who} has other gathers of tokens than sequence={shared:d} needs")
    for index in (*mine.sums.values(), *mine.gathers.values()):
        launch = plan.launches[index]
        allowed = SPREADS if launch.purpose == GATHER else SCATTERS
        base, _, _ = launch.method.removeprefix(PREFIX).partition("+")
        sharded = launch.method.startswith(PREFIX)
        if sharded != shared or (shared and base not in allowed):
            raise CommschedError(
                f"{who}: launch {launch.name!r} has method {launch.method!r}, which"
                f" sequence={shared:d} cannot use"
            )


DEPTH = Parameter(0, Range(0, pipeline.MOST), _depths, learns=False)
STRATEGIES.add("tensor")(Grid("tensor", 1, {}, {}))
STRATEGIES.add("3d")(
    Grid("3d", 8, {"pipeline": DEPTH, "messages": MESSAGES}, {"interleave": pipeline.INTERLEAVE})
)
