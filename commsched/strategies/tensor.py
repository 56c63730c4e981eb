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
from commsched.program.flushed import StageWork, draft_stages, one_forward_one_backward
from commsched.program.launch_ops import (
    OPTIMIZER,
    OPTIMIZERS,
    apply_op,
    exchange_ops,
    update_traffic,
)
from commsched.program.model import After, Kind, Turn
from commsched.program.parameters import Parameter, Range
from commsched.program.registry import STRATEGIES
from commsched.program.stages import Stage
from commsched.program.strategy import Memory
from commsched.program.tensor_sums import Segment, segment_end, segments, visits
from commsched.program.units import GATHER

MASTER = 4.0  # B of an element's float32 copy, which the owner of its shard updates
TENSOR = "tensor"  # purpose of the sums of activations


class StageLaunches(NamedTuple):
    """The launches of a stage."""

    sums: dict[int, int]  # elements of activations -> launch
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


def _pieces(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List the number of microbatches of a step with a batch for each rank."""
    stages, width = pipeline.degrees_of(before)
    return [stages * width]


class Grid(pipeline.PipelineStrategy):
    """Ranks in a grid of data x pipeline x tensor; rank = (stage D + replica) T + place.

    The T ranks of a tensor group share each cut layer: a pair of matrices, the first by columns,
    the second by rows, needs one all-reduce of its outputs forward and one of its inputs' gradient
    backward, so that a transformer block has four in each microbatch, which nothing hides. With
    b s h activations of a microbatch in E B each, l blocks in a stage and m microbatches a rank
    sends

        4 l m 2 (T - 1) / T b s h E          B in tensor groups,
        2 (D - 1) / D 4 Psi / (T P)          B of gradients, and of parameters under zero=1

    Psi = parameters; P = stages, T = tensor, D = ranks / (T P). Stages follow 1F1B with a flush.
    zero=1: each of D replicas owns a shard of the optimiser's state and of the float32 parameters,
    sums of gradients end in shards, and updated parameters are gathered before the next step.
    tensor=0: as many ranks of a node as can share the layers. pipeline=0: as few stages as fit.
    Embedding and head are shared by rows of the vocabulary; the few numbers that a shared
    cross-entropy exchanges cost nothing here.
    Source: Shoeybi et al., "Megatron-LM", arXiv 1909.08053; Narayanan et al., "Efficient
    large-scale language model training on GPU clusters using Megatron-LM", SC 2021; zero:
    Rajbhandari et al., "ZeRO", SC 2020.
    """

    fewest, codec = True, ""

    def __init__(self, name: str, microbatches: int, more: Mapping[str, Parameter]) -> None:
        self.name = name
        self.parameters: Mapping[str, Parameter] = {
            "tensor": Parameter(0, Range(0, pipeline.MOST), _widths, learns=False),
            **more,
            "zero": Parameter(0, (0, 1), (0, 1), learns=False),
            "microbatches": pipeline.PARAMETERS["microbatches"]._replace(
                default=microbatches, tries=_pieces
            ),
            **recompute.PARAMETERS,
            "optimizer": OPTIMIZER,
        }

    def prepare(
        self, net: Net, machine: Machine, settings: Mapping[str, Param]
    ) -> tuple[Net, dict[str, Param]]:
        return cut_net(net, pipeline.degrees_of(settings)[1]), dict(settings)

    def draft(self, plan: Plan) -> Draft:
        settings = self.settings(plan)
        stages, m = pipeline.grid(plan, settings), int(settings["microbatches"])
        if plan.net.tensor != stages[0].width:
            raise CommschedError(
                f"strategy {self.name!r}: net {plan.net.name!r} is cut for {plan.net.tensor} ranks,"
                f" but tensor is {stages[0].width}"
            )
        launches = launches_of(plan, stages)

        @lru_cache
        def parts(stage: int, backward: bool) -> tuple[Segment, ...]:
            own, count = stages[stage], int(settings["recompute"])
            cuts = recompute.cuts_of(own, count) if count else ()
            return segments(plan, launches[stage].sums, visits(own.layers, cuts, backward))

        def before(stage: Stage) -> list[After]:
            gathers = launches[stage.number].gathers
            return [After(exchange_ops(plan, i, After(""))[-1].name, 1) for i in gathers]

        draft = Draft([stage.ranks for stage in stages])
        work = StageWork(
            0.0, segments=lambda stage, turn: parts(stage.number, turn.backward), before=before
        )
        draft_stages(draft, stages, one_forward_one_backward, m, work)
        traffic = update_traffic(settings["optimizer"])
        for stage, mine in zip(stages, launches, strict=True):
            last = one_forward_one_backward(len(stages), m, stage.number)[-1]
            _finish(
                draft, plan, stage, mine, _ends(last, stage, parts(stage.number, True)), traffic
            )
        return draft

    def memory(self, plan: Plan) -> Memory:
        settings = self.settings(plan)
        stages, m = pipeline.grid(plan, settings), int(settings["microbatches"])
        per_element = float(OPTIMIZERS[str(settings["optimizer"])][0])
        owners = stages[0].replicas
        if settings["zero"]:
            per_element = (per_element + MASTER) / owners

        def of(stage: Stage) -> Memory:
            each, once = recompute.kept(plan.net, stages, stage.number, settings)
            sent = {x.summed for x in stage.layers for b in (False, True) if sums(x, b)}
            return Memory(
                parameters=float(stage.nbytes),
                gradients=float(stage.nbytes),
                optimizer=per_element * stage.numel,
                activations=min(m, len(stages) - stage.number) * each + once,
                buckets=4.0 * stage.numel * (owners > 1) + 4.0 * sum(sent) * (stage.width > 1),
            )

        return max(map(of, stages), key=lambda found: found.total)


def _ends(last: Turn, stage: Stage, parts: Sequence[Segment]) -> dict[str, After]:
    """Return after which computation each layer's gradients are complete."""
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
    """Sum a stage's gradients over its replicas, update, and gather what others have updated."""
    last: dict[int, After] = {}
    for index in launches.reduces:
        last[index] = ends[plan.launches[index].after]
        if stage.replicas > 1:
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
    """List each stage's launches; refuse those that do not do what the strategy needs."""
    home = {t.name: s.number for s in stages for layer in s.layers for t in layer.tensors}
    by_group = {stage.ranks: stage.number for stage in stages}
    found = [StageLaunches({}, [], []) for _ in stages]
    order = sorted(range(len(plan.launches)), key=lambda i: plan.launches[i].priority)
    for index in order:
        launch = plan.launches[index]
        where = f"strategy {plan.strategy!r}: launch {launch.name!r}"
        if launch.payload == "activation":
            number = by_group.get(launch.group, -1)
            wanted = launch.group, stages[number].replicas
        else:
            number = home[launch.pieces[0].tensor]
            wanted = stages[number].alike, stages[number].width
            if {home[piece.tensor] for piece in launch.pieces} != {number}:
                raise CommschedError(f"{where} has tensors of several stages; allowed is one")
        if number < 0 or (launch.group, launch.split) != wanted:
            raise CommschedError(f"{where} must exchange in the teams of one stage, in their order")
        if launch.every != 1 or launch.lag != 0:
            raise CommschedError(f"{where} must exchange in every step, and merge at once")
        _sort_in(found[number], index, launch, where)
    for stage, mine in zip(stages, found, strict=True):
        _check_whole(plan, stage, mine)
    return found


def _sort_in(into: StageLaunches, index: int, launch: Launch, where: str) -> None:
    """Note a launch by its purpose."""
    kind = launch.purpose, launch.payload
    if kind == (TENSOR, "activation"):
        into.sums[launch.activations] = index
    elif kind == ("", "gradient"):
        into.reduces.append(index)
    elif kind == (GATHER, "parameter"):
        into.gathers.append(index)
    else:
        raise CommschedError(f"{where} has purpose {launch.purpose!r} for {launch.payload}s")


def _check_whole(plan: Plan, stage: Stage, mine: StageLaunches) -> None:
    """Refuse a stage without a sum that it needs, and shards without their gather."""
    who, zero = f"strategy {plan.strategy!r}: stage {stage.number}", plan.params.get("zero", 0)
    wanted = {x.summed for x in stage.layers for back in (False, True) if sums(x, back)}
    missing = wanted - mine.sums.keys() if stage.width > 1 else set()
    if missing:
        raise CommschedError(f"{who} has no launch that sums {min(missing)} activations")
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


DEPTH = Parameter(0, Range(0, pipeline.MOST), _depths, learns=False)
STRATEGIES.add("tensor")(Grid("tensor", 1, {}))
STRATEGIES.add("3d")(Grid("3d", 8, {"pipeline": DEPTH}))
