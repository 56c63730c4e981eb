"""A net cut into stages, the ranks of each stage, and the messages between neighbouring stages."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commsched.errors import CommschedError
from commsched.machine.model import Machine
from commsched.net.graph import Layer, Net
from commsched.plan.model import Param, Plan
from commsched.program.draft import Draft
from commsched.program.launch_ops import apply_op, exchange_ops
from commsched.program.layer_ops import DIRECTIONS
from commsched.program.message_coding import MESSAGES
from commsched.program.model import After, Kind, Op, Program, Role, Turn
from commsched.program.parameters import Parameter, Range
from commsched.program.strategy import Strategy

MOST = 2**20
HEAD = "head@s"  # begins the names of auxiliary heads' layers in a net; see `is_head`
LONGER = (1, 2, 4)  # batches in a step, as multiples of the number of ranks
OVERFLOW = "overflow/decide"  # the operation that agrees whether a step is left out


def degrees(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List the numbers of stages, two or more, that divide the ranks; each has a layer or more."""
    trunk = trunk_of(net)
    if not (before.get("message_bytes") or any(x.output or x.activation for x in trunk)):
        raise CommschedError(
            f"what crosses a cut is unknown, as net {net.name!r} does not say how many bytes its"
            " layers give; set message_bytes"
        )
    found = [k for k in range(2, min(len(trunk), machine.size) + 1) if machine.size % k == 0]
    if not found:
        raise CommschedError(
            f"{machine.size} ranks and {len(trunk)} layers make no two stages of equally many ranks"
        )
    return [*found]


def pieces(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List numbers of microbatches: of a step with a batch for each rank, and of longer steps."""
    return [max(int(before["stages"]), 1) * times for times in LONGER]


def interleavings(net: Net, machine: Machine, before: Mapping[str, Param]) -> list[Param]:
    """List numbers of stages on each rank: one, and two if there are layers and microbatches."""
    ranks, m = degrees_of(before)[0], int(before["microbatches"])
    twice = ranks > 1 and m % ranks == 0 and 2 * ranks <= len(trunk_of(net))
    return [1, 2] if twice else [1]


# stages on each rank, which are consecutive only if there is one: stage k is on the k-th rank
# modulo the number of ranks in a pipeline
INTERLEAVE = Parameter(1, Range(1, MOST), interleavings, learns=False)

# Parameters of all pipelines. stages 0: the planner's choice. A net's batch is one microbatch.
# near: the stages of a pipeline, or the replicas of a stage, have consecutive ranks.
# message_bytes 0: the activations that cross a cut, as the net's layers state them.
# messages: the codec of these activations and of their gradients.
PARAMETERS = {
    "stages": Parameter(0, Range(0, MOST), degrees, learns=False),
    "microbatches": Parameter(8, Range(1, 2**16), pieces, learns=False),
    "near": Parameter("stages", ("stages", "replicas"), learns=False),
    "message_bytes": Parameter(0.0, Range(0.0, 2.0**50), learns=False),
    "messages": MESSAGES,
}


def head_name(stage: int) -> str:
    """Return the name of the layer that is the auxiliary head of a stage."""
    return f"{HEAD}{stage}"


def is_head(layer: str) -> bool:
    """Tell whether a layer is an auxiliary head; its name says so."""
    return layer.startswith(HEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Consecutive layers, computed by one rank, or `width` ranks, of each replica."""

    number: int
    ranks: tuple[int, ...]  # replica by replica
    width: int = 1  # ranks of a replica, which share the cut layers
    layers: tuple[Layer, ...]  # the auxiliary head's layers come last
    forward: float  # s of a microbatch, without the head
    backward: float  # s of a microbatch, without the head
    head: float  # s of the head's forward and backward, 0 without one
    output: int  # B of a microbatch that go to the next stage; its gradient has as many
    activation: float  # B of a microbatch that are kept from forward to backward
    numel: int
    last: bool  # of the pipeline

    @property
    def nbytes(self) -> int:
        """Return the bytes of its parameters, in the types of their tensors."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.tensors)

    @property
    def replicas(self) -> int:
        """Return the number of replicas of the stage."""
        return len(self.ranks) // self.width

    @property
    def alike(self) -> tuple[int, ...]:
        """Return the stage's ranks, team after team; ranks of a team have equal parameters."""
        teams = (self.ranks[place :: self.width] for place in range(self.width))
        return tuple(rank for team in teams for rank in team)

    @property
    def trunk(self) -> tuple[Layer, ...]:
        """Return the layers without the auxiliary head."""
        return tuple(layer for layer in self.layers if not is_head(layer.name))


class PipelineStrategy(Strategy):
    """A strategy whose plans have stages; all steps have the same operations."""

    fewest: bool  # True: as few stages as fit into memory; False: as many as possible
    codec = ""  # of the replicas' exchanges; "": any
    # whether each microbatch passes all stages forward and backward before the step's updates
    flushes = True

    @abstractmethod
    def draft(self, plan: Plan) -> Draft:
        """Return the operations of every step."""

    def prepare(
        self, net: Net, machine: Machine, settings: Mapping[str, Param]
    ) -> tuple[Net, dict[str, Param]]:
        """Return the net in the form that is trained, and the parameters that describe it."""
        return net, dict(settings)

    def lower(self, plan: Plan, step: int, decisions: Mapping[str, float]) -> Program:
        return Program(step=step, roles=_roles(plan, self.draft))

    def batches(self, plan: Plan) -> int:
        return batches(plan, self.settings(plan))

    def cut(self, plan: Plan) -> tuple[dict[str, Param], tuple[Stage, ...], int]:
        """Return a plan's settings, its stages, and the microbatches of a step."""
        settings = self.settings(plan)
        return settings, grid(plan, settings), int(settings["microbatches"])

    def work(self, plan: Plan) -> float:
        _, stages, m = self.cut(plan)
        return m * sum(stage.forward + stage.backward for stage in dealt(stages)[-1])


def batches(plan: Plan, settings: Mapping[str, Param]) -> int:
    """Count the batches of the net in a step: the microbatches of all replicas."""
    stages, width = degrees_of(settings)
    return plan.machine.size // (stages * width) * int(settings["microbatches"])


def grid(plan: Plan, settings: Mapping[str, Param]) -> tuple[Stage, ...]:
    """Cut a plan's net into stages of nearly equal seconds, and place their replicas.

    With interleave = V there are V times as many stages as ranks in a pipeline, K: stage k is on
    the ranks of stage k mod K.
    """
    net, machine, (depth, width) = plan.net, plan.machine, degrees_of(settings)
    message_bytes = float(settings.get("message_bytes", 0.0))
    trunk = trunk_of(net)
    stages = depth * int(settings.get("interleave", 1))
    if not 1 <= stages <= len(trunk):
        raise CommschedError(
            f"{stages} stages cannot be made of the {len(trunk)} layers of net {net.name!r};"
            f" allowed: 1 to {len(trunk)}"
        )
    _check_interleaved(settings)
    if machine.size % width:
        near_by = max(k for k in range(1, width) if machine.size % k == 0)
        raise CommschedError(
            f"{width} tensor-parallel ranks do not divide {machine.size} ranks; nearest:"
            f" tensor={near_by}"
        )
    if machine.size // width % depth:
        near_by = max(k for k in range(1, depth) if machine.size // width % k == 0)
        sharing = f" of {width} ranks each" if width > 1 else ""
        raise CommschedError(
            f"{depth} stages{sharing} do not divide {machine.size} ranks; nearest: {near_by}"
        )
    times = [net.seconds(layer, machine.device) for layer in trunk]
    cuts = block_cuts(trunk, [sum(pair) for pair in times], stages)
    found = []
    near = str(settings.get("near", "replicas"))
    places = ranks_of(machine.size, depth, near)
    for k in range(stages):
        part = slice(cuts[k], cuts[k + 1])
        heads = [layer for layer in net.layers if layer.name == head_name(k)]
        layers = (*trunk[part], *heads)
        crosses = crossing(trunk, cuts[k + 1]) if k + 1 < stages else 0.0
        found.append(
            Stage(
                number=k,
                ranks=places[k % depth],
                width=width,
                layers=layers,
                forward=sum(forward for forward, _ in times[part]),
                backward=sum(backward for _, backward in times[part]),
                head=sum(sum(net.seconds(layer, machine.device)) for layer in heads),
                output=round(message_bytes or crosses) if k + 1 < stages else 0,
                activation=sum(layer.activation for layer in layers),
                numel=sum(t.numel for layer in layers for t in layer.tensors),
                last=k + 1 == stages,
            )
        )
    return tuple(found)


def _check_interleaved(settings: Mapping[str, Param]) -> None:
    """Refuse stages that cannot be interleaved."""
    ranks, chunks, m = degrees_of(settings)[0], settings.get("interleave", 1), 0
    if chunks == 1:
        return
    m = int(settings["microbatches"])
    if ranks == 1:
        raise CommschedError(
            f"interleave={chunks} needs a pipeline of two ranks or more; nearest: interleave=1"
        )
    if m % ranks:
        raise CommschedError(
            f"interleave={chunks} needs a multiple of {ranks} microbatches, as many as a pipeline"
            f" has ranks; got {m}; nearest: {-(-m // ranks) * ranks}"
        )


def dealt(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Return the stages of each role: one, or several if stages are interleaved."""
    found: dict[tuple[int, ...], list[Stage]] = {}
    for stage in stages:
        found.setdefault(stage.ranks, []).append(stage)
    return [*found.values()]


def degrees_of(settings: Mapping[str, Param]) -> tuple[int, int]:
    """Return the ranks in a pipeline, and those that share a stage's layers; 0: not chosen yet."""
    stages = settings.get("pipeline", settings.get("stages", 1))
    return int(stages), int(settings.get("tensor", 1))


def block_cuts(layers: Sequence[Layer], weights: Sequence[float], parts: int) -> list[int]:
    """Cut layers between their blocks so that the largest sum is minimal: (parts + 1,) bounds.

    With fewer blocks than parts, every layer is a block.
    """
    starts = [
        place
        for place, layer in enumerate(layers)
        if not (place and layer.block and layer.block == layers[place - 1].block)
    ]
    if len(starts) < parts:
        starts = [*range(len(layers))]
    ends = [*starts[1:], len(layers)]
    sums = [sum(weights[a:b]) for a, b in zip(starts, ends, strict=True)]
    return [(*starts, len(layers))[cut] for cut in balanced(sums, parts)]


def balanced(weights: Sequence[float], parts: int) -> list[int]:
    """Cut a sequence into runs so that the largest sum is minimal: (parts + 1,) bounds."""
    return [*_balanced(tuple(weights), parts)]


@lru_cache(maxsize=64)
def _balanced(weights: tuple[float, ...], parts: int) -> tuple[int, ...]:
    total = np.concatenate([[0.0], np.cumsum(weights)])
    count = len(weights)
    best = total.copy()  # (j,) the minimal largest sum of the first j weights in k runs
    first = np.zeros((parts, count + 1), np.int64)  # start of the last run
    for k in range(1, parts):
        best_now = np.full(count + 1, np.inf)
        for j in range(k + 1, count + 1):
            largest = np.maximum(best[k:j], total[j] - total[k:j])
            at = int(largest.argmin())
            best_now[j], first[k, j] = largest[at], k + at
        best = best_now
    bounds = [count]
    for k in range(parts - 1, 0, -1):
        bounds.append(int(first[k, bounds[-1]]))
    return (0, *bounds[:0:-1], count) if parts > 1 else (0, count)


def ranks_of(size: int, stages: int, near: str) -> list[tuple[int, ...]]:
    """Return the ranks of each stage, replica by replica."""
    replicas = size // stages
    if near == "replicas":
        return [tuple(range(k * replicas, (k + 1) * replicas)) for k in range(stages)]
    return [tuple(range(k, size, stages)) for k in range(stages)]


def trunk_of(net: Net) -> list[Layer]:
    """Return the layers without auxiliary heads."""
    return [layer for layer in net.layers if not is_head(layer.name)]


def crossing(trunk: Sequence[Layer], cut: int) -> float:
    """Return the bytes of the activations before a cut that layers behind it read."""
    read = {name for layer in trunk[cut:] for name in layer.after}
    return sum(layer.output or layer.activation for layer in trunk[:cut] if layer.name in read)


def check(plan: Plan, stages: Sequence[Stage]) -> list[list[int]]:
    """List each stage's launches by priority; refuse launches that do not sum its gradients."""
    home = {t.name: s.number for s in stages for layer in s.layers for t in layer.tensors}
    found: list[list[int]] = [[] for _ in stages]
    for index, launch in enumerate(plan.launches):
        numbers = {home[piece.tensor] for piece in launch.pieces}
        where = f"launch {launch.name!r}"
        if len(numbers) > 1:
            raise CommschedError(f"{where} has tensors of stages {sorted(numbers)}; allowed is one")
        (number,) = numbers
        if plan.group(launch).ranks != stages[number].ranks:
            raise CommschedError(
                f"{where} must exchange among the {len(stages[number].ranks)} ranks of stage"
                f" {number}, but its group differs"
            )
        if launch.payload != "gradient" or launch.every != 1 or launch.lag != 0:
            raise CommschedError(
                f"{where} must exchange gradients in every step and merge them at once under"
                f" strategy {plan.strategy!r}"
            )
        found[number].append(index)
    for mine in found:
        mine.sort(key=lambda index: plan.launches[index].priority)
    return found


@lru_cache(maxsize=16)
def _roles(plan: Plan, make: Callable[[Plan], Draft]) -> tuple[Role, ...]:
    """Return the roles of every step of a plan; they are cached objects."""
    return make(plan).roles


def turn_end(turn: Turn, stage: int) -> After:
    """Return the end of a computation of a stage."""
    word = DIRECTIONS[turn.backward]
    return After(f"{word}/s{stage}/m{turn.microbatch}{'/window' if turn.again else ''}")


def compute(
    draft: Draft,
    stage: Stage,
    turn: Turn,
    seconds: float,
    after: Sequence[After] = (),
    urgency: int = 0,
) -> After:
    """Append a computation of a stage; returns its end."""
    end = turn_end(turn, stage.number)
    op = Op(
        kind=Kind.COMPUTE,
        name=end.name,
        stream="compute",
        after=tuple(after),
        seconds=seconds,
        layer=stage.layers[0].name,
        turn=turn,
        urgency=urgency,
    )
    draft.add(stage.number, op)
    return end


def finish(
    draft: Draft,
    plan: Plan,
    stage: Stage,
    launches: Sequence[int],
    last: After,
    traffic: float,
    agree: bool = False,
) -> None:
    """Sum a stage's gradients over its replicas after its `last` computation, and apply them.

    With `agree` all ranks first decide whether the step counts.
    """
    exchanged = {}
    for index in launches:
        ops = exchange_ops(plan, index, last) if len(stage.ranks) > 1 else []
        draft.add(stage.number, *ops)
        exchanged[index] = After(ops[-1].name) if ops else last
    if agree:
        there = tuple(dict.fromkeys(exchanged.values())) or (last,)
        draft.add(stage.number, Op(kind=Kind.DECIDE, name=OVERFLOW, stream="between", after=there))
        exchanged = dict.fromkeys(launches, After(OVERFLOW))
    for index in launches:
        draft.add(stage.number, apply_op(plan, index, traffic, exchanged[index]))
