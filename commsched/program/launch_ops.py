"""The operations of one launch: its exchange, phase after phase, and the update that follows."""

from collections.abc import Iterable

from commsched.errors import CommschedError
from commsched.exchange.memory import launch_memory, sets_bytes
from commsched.exchange.method import chooses, resolved
from commsched.exchange.registry import phases_of
from commsched.plan.model import Plan
from commsched.program.model import After, Kind, Op
from commsched.program.parts import apply_seconds, operations
from commsched.program.phases import operation_name
from commsched.schedule.rounds import Goal

# Bytes of optimiser state per parameter, and memory traffic of one update in B per parameter:
# read gradient, read and write the parameter and each state word.
OPTIMIZERS = {"sgd": (0, 12), "momentum": (4, 20), "adam": (8, 28)}


def beside_buckets(plan: Plan, indices: Iterable[int]) -> dict[str, float]:
    """Bytes that some launches take on a rank beside their buckets, by use.

    All may be encoded before the first one is sent; one exchange at a time receives. Index sets
    serve all launches that have runs of that length.
    """
    launches = [plan.launches[index] for index in indices]
    found = [launch_memory(each.method, plan.spec(each), plan.group(each)) for each in launches]
    waiting = sum(one.waiting for one in found)
    received = max((one.received for one in found), default=0.0)
    sets = sets_bytes(frozenset().union(*(one.sets for one in found)))
    return {"residuals": sum(one.kept for one in found) + sets, "packets": waiting + received}


def exchange_ops(plan: Plan, index: int, before: After, encode: str = "encode") -> list[Op]:
    """Encode, exchange and decode of every phase of a launch's method, after `before`.

    encode: the stream that encodes, which may be the launch's own.
    """
    launch, phases = plan.launches[index], phases_of(plan, index)
    streams = {Kind.ENCODE: encode, Kind.DECODE: "decode"}
    ops: list[Op] = []
    for kind, number in operations(phases):
        op = Op(
            kind=kind,
            name=operation_name(launch.name, phases[number].name, kind),
            stream=streams.get(kind, launch.stream),
            after=(before,),
            launch=index,
            phase=number,
        )
        ops.append(op)
        before = After(op.name)
    return ops


def send_ops(plan: Plan, index: int, after: tuple[After, ...], team: int = -1) -> list[Op]:
    """Copy a launch's parameters and begin to sum them, to be merged later; see `merge_op`.

    team: the only one of the launch's teams that takes part.
    """
    launch = plan.launches[index]
    encode, sent = (operation_name(launch.name, "", k) for k in (Kind.ENCODE, Kind.EXCHANGE))
    return [
        Op(kind=Kind.ENCODE, name=encode, stream="encode", after=after, launch=index),
        Op(
            kind=Kind.EXCHANGE,
            name=sent,
            stream=launch.stream,
            after=(After(encode),),
            launch=index,
            team=team,
        ),
    ]


def merge_op(plan: Plan, index: int, waited: int, updated: str) -> Op:
    """Merge a launch's sum that was sent `waited` steps ago, once the step's update is done.

    waited: -1 where the sum replaces the parameters of the same step.
    """
    name = plan.launches[index].name
    sent = After(operation_name(name, "", Kind.EXCHANGE), max(waited, 0))
    return Op(
        kind=Kind.MERGE,
        name=operation_name(name, "", Kind.MERGE),
        stream="decode",
        after=(sent, After(updated)),
        launch=index,
        waited=waited,
    )


def check_sums(plan: Plan, index: int, where: str) -> None:
    """Refuse a launch of parameters whose method is not one all-reduce."""
    phases = phases_of(plan, index)
    alone = len(phases) == 1 and not chooses(phases)
    if not alone or resolved(phases[0]).schedule.goal is not Goal.ALL_REDUCE:
        raise CommschedError(
            f"{where} has method {plan.launches[index].method!r}; parameters are summed by an"
            " all-reduce such as 'ring+dense'"
        )


def apply_op(plan: Plan, index: int, traffic: float, after: After) -> Op:
    """The update of a launch's elements, which moves `traffic` B in memory for each."""
    launch = plan.launches[index]
    numel = sum(stop - start for _, start, stop in launch.pieces)
    return Op(
        kind=Kind.APPLY,
        name=f"{launch.name}/apply",
        stream="compute",
        after=(after,),
        seconds=apply_seconds(numel, traffic, plan.machine.device),
        launch=index,
    )


def broadcast_ops(
    plan: Plan, index: int, root: int, there: After | None, before: After
) -> list[Op]:
    """The broadcast of parameters that member `root` of each team has.

    there: after what this rank has them; None where it receives them, after `before`.
    """
    launch = plan.launches[index]
    encode, moved, decode = (
        operation_name(launch.name, "", k) for k in (Kind.ENCODE, Kind.EXCHANGE, Kind.DECODE)
    )
    ops: list[Op] = []
    sent = before
    if there is not None:
        ops.append(Op(kind=Kind.ENCODE, name=encode, stream="encode", after=(there,), launch=index))
        sent = After(encode)
    ops.append(
        Op(
            kind=Kind.EXCHANGE,
            name=moved,
            stream=launch.stream,
            after=(sent,),
            launch=index,
            root=root,
        )
    )
    if there is None:
        ops.append(
            Op(
                kind=Kind.DECODE,
                name=decode,
                stream="decode",
                after=(After(moved), before),
                launch=index,
                root=root,
            )
        )
    return ops
