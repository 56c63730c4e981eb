"""The operations of one launch: its exchange, phase after phase, and the update that follows."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from commsched.arrays import Ints
from commsched.errors import CommschedError
from commsched.exchange.memory import launch_memory, sets_bytes
from commsched.exchange.method import chooses, resolved
from commsched.exchange.registry import find_method, phases_of
from commsched.net.graph import Layer
from commsched.plan.model import Launch, Param, Plan
from commsched.program.model import After, Kind, Op
from commsched.program.parameters import Parameter
from commsched.program.parts import operations
from commsched.program.phases import operation_name
from commsched.program.strategy import Memory
from commsched.schedule.rounds import Goal

# Bytes of optimiser state per parameter, and memory traffic of one update in B per parameter:
# read gradient, read and write the parameter and each state word.
OPTIMIZERS = {"sgd": (0, 12), "momentum": (4, 20), "adam": (8, 28)}
OPTIMIZER = Parameter("momentum", tuple(OPTIMIZERS), learns=False)

STREAMS = {
    Kind.ENCODE: "encode",
    Kind.DECODE: "decode",
    Kind.MERGE: "decode",
}  # others: the launch's


def update_traffic(optimizer: Param) -> float:
    """Return the memory traffic of one update, B per parameter."""
    return float(OPTIMIZERS[str(optimizer)][1])


def replica_memory(
    plan: Plan, optimizer: Param, buckets: float, launches: Iterable[int] = ()
) -> Memory:
    """Return the bytes on a rank that trains the whole net, with those of `beside_buckets`.

    buckets: elements of all buckets, which travel as float32.
    """
    return Memory(
        parameters=float(plan.net.nbytes),
        gradients=float(plan.net.nbytes),
        optimizer=float(OPTIMIZERS[str(optimizer)][0] * plan.net.numel),
        activations=sum(layer.activation for layer in plan.net.layers),
        buckets=4.0 * buckets,
        **beside_buckets(plan, launches),
    )


def beside_buckets(plan: Plan, indices: Iterable[int]) -> dict[str, float]:
    """Return the bytes that launches take on a rank in addition to their buckets, by use.

    All launches may be encoded before the first is sent; one exchange at a time receives. Launches
    with runs of equal length share index sets.
    """
    launches = [plan.launches[index] for index in indices]
    memories = [
        launch_memory(each.method, plan.spec(each), plan.group(each))
        for each in launches
        if not find_method(each.method).library  # which sums in the bucket
    ]
    waiting = sum(one.waiting for one in memories)
    received = max((one.received for one in memories), default=0.0)
    sets = sets_bytes(frozenset().union(*(one.sets for one in memories)))
    kept = sum(one.kept for one in memories) + sets
    return {"residuals": float(kept), "packets": float(waiting + received)}


def launches_of_layers(plan: Plan, layers: Iterable[Layer]) -> list[int]:
    """Return the launches of tensors that these layers have."""
    names = {tensor.name for layer in layers for tensor in layer.tensors}
    return [i for i, x in enumerate(plan.launches) if x.pieces and x.pieces[0].tensor in names]


def in_order(plan: Plan, purpose: str) -> list[int]:
    """Return the launches of a purpose, by priority."""
    rows = [i for i, launch in enumerate(plan.launches) if launch.purpose == purpose]
    return sorted(rows, key=lambda i: plan.launches[i].priority)


def end_of(plan: Plan, index: int, kind: Kind, steps_back: int = 0) -> After:
    """Return the name of a launch's operation; its method must have one phase."""
    return After(operation_name(plan.launches[index].name, "", kind), steps_back)


def launch_op(plan: Plan, index: int, kind: Kind, *after: After) -> Op:
    """Build one operation of a launch, on the default stream of its kind."""
    launch = plan.launches[index]
    return Op(
        kind=kind,
        name=operation_name(launch.name, "", kind),
        stream=STREAMS.get(kind, launch.stream),
        after=after,
        launch=index,
    )


def teams_apart(plan: Plan, operations: Mapping[str, Op]) -> dict[str, Ints]:
    """Return the team of every rank, (ranks,), for launches that several teams do at a time."""
    found = dict[int, Ints]()
    for index, launch in enumerate(plan.launches):
        if launch.among == "node" or launch.split > 1:
            teams = plan.teams(launch)
            found[index] = np.zeros(plan.machine.size, np.int64)
            found[index][teams] = np.arange(len(teams))[:, np.newaxis]
    return {name: found[op.launch] for name, op in operations.items() if op.launch in found}


def exchange_ops(
    plan: Plan, index: int, before: After, where: str = "", own: Collection[Kind] = ()
) -> list[Op]:
    """Encode, exchange and decode of every phase of a launch's method, after `before`.

    where: a part of the names, for launches exchanged more than once in a step. own: the kinds of
    operations on the launch's own stream, by the communication thread.
    """
    phases, ops, launch = phases_of(plan, index), list[Op](), plan.launches[index]
    for kind, number in operations(phases):
        place = "/".join(filter(None, (phases[number].name, where)))
        op = Op(
            kind=kind,
            name=operation_name(launch.name, place, kind),
            stream=launch.stream if kind in own else STREAMS.get(kind, launch.stream),
            after=(before,),
            launch=index,
            phase=number,
        )
        ops.append(op)
        before = After(op.name)
    return ops


def own_op(plan: Plan, index: int, before: After) -> Op:
    """Build the operation that takes a rank's own gradient as the result, without an exchange."""
    return replace(launch_op(plan, index, Kind.DECODE, before), alone=True)


def send_ops(plan: Plan, index: int, after: tuple[After, ...], team: int | None = None) -> list[Op]:
    """Copy a launch's parameters and begin to sum them, to be merged later; see `merge_op`.

    team: the only one of the launch's teams that takes part.
    """
    copy = launch_op(plan, index, Kind.ENCODE, *after)
    return [copy, replace(launch_op(plan, index, Kind.EXCHANGE, After(copy.name)), team=team)]


def merge_op(plan: Plan, index: int, waited: int | None, updated: After) -> Op:
    """Merge a launch's sum that was sent `waited` steps ago, once the step's update is done.

    waited: None if the sum replaces the parameters of the same step.
    """
    sent = end_of(plan, index, Kind.EXCHANGE, waited or 0)
    return replace(launch_op(plan, index, Kind.MERGE, sent, updated), waited=waited)


class Rule(NamedTuple):
    """The payload that all launches of a purpose must exchange, and how often."""

    payload: str
    among: str
    every: int = 1  # steps
    lag: int = 0  # steps until the result is merged

    def __str__(self) -> str:
        often = f"every {self.every} steps, merged {self.lag} steps later"
        return f"{self.payload}s among {self.among!r} {often}"


def check_rules(plan: Plan, rules: Mapping[str, Rule]) -> None:
    """Refuse launches that break the rule of their purpose, and purposes without a launch."""
    who = f"strategy {plan.strategy!r}"
    for launch in plan.launches:
        where = f"{who}: launch {launch.name!r}"
        if launch.purpose not in rules:
            raise CommschedError(
                f"{where} has purpose {launch.purpose!r}; allowed: {', '.join(rules)}"
            )
        among = f"ranks {launch.group}" if launch.group else launch.among
        rule = Rule(launch.payload, among, launch.every, launch.lag)
        if rule != rules[launch.purpose]:
            raise CommschedError(
                f"{where} exchanges {rule}; of purpose {launch.purpose!r} are"
                f" {rules[launch.purpose]}"
            )
    for purpose in rules:
        if not in_order(plan, purpose):
            raise CommschedError(f"{who}: no launch has purpose {purpose!r}")


def check_sums(plan: Plan, index: int, where: str) -> None:
    """Refuse a launch of parameters whose method is not one all-reduce."""
    phases = phases_of(plan, index)
    alone = len(phases) == 1 and not chooses(phases)
    if not alone or resolved(phases[0]).schedule.goal is not Goal.ALL_REDUCE:
        raise CommschedError(
            f"{where} has method {plan.launches[index].method!r}; parameters are summed by an"
            " all-reduce such as 'ring+dense'"
        )


def check_can_leave(launches: Iterable[Launch], what: str, nearest: str) -> None:
    """Refuse a change of launches if the old ones keep unsent gradients that no other can take."""
    for launch in launches:
        if not find_method(launch.method).measurable:
            raise CommschedError(
                f"{what}: launch {launch.name!r} has method {launch.method!r}, whose unsent"
                f" gradients no other plan can take over; nearest: {nearest}"
            )


def check_teams_alike(plan: Plan, index: int, where: str) -> None:
    """Refuse a launch of several teams that could decide differently how they exchange."""
    if chooses(phases_of(plan, index)):
        raise CommschedError(
            f"{where} has method {plan.launches[index].method!r}, whose exchanges depend on the"
            " data, so teams could decide differently; allowed: methods whose exchanges are fixed"
        )


def apply_op(plan: Plan, index: int, traffic: float, *after: After, share: float = 1.0) -> Op:
    """Build the update of a launch's elements, or of the `share` of them that a rank updates.

    Each element moves `traffic` B of memory, if the net states no measured time.
    """
    numel = plan.launches[index].numel * share
    seconds = plan.net.update_seconds(numel, traffic, plan.machine.device)
    op = launch_op(plan, index, Kind.APPLY, *after)
    return replace(op, stream="compute", seconds=seconds)


def broadcast_ops(
    plan: Plan, index: int, root: int, there: After | None, before: After
) -> list[Op]:
    """Build the broadcast of the parameters of member `root` of each team.

    there: the operation after which this rank has them; None if it receives them, after `before`.
    """
    first = [] if there is None else [launch_op(plan, index, Kind.ENCODE, there)]
    moved = launch_op(plan, index, Kind.EXCHANGE, After(first[0].name) if first else before)
    last = [] if first else [launch_op(plan, index, Kind.DECODE, After(moved.name), before)]
    return [replace(op, root=root) for op in (*first, moved, *last)]
