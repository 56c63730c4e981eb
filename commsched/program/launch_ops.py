"""The operations of one launch: its exchange, phase after phase, and the update that follows."""

from collections.abc import Iterable

from commsched.exchange.memory import launch_memory, sets_bytes
from commsched.exchange.method import Choice
from commsched.exchange.registry import phases_of
from commsched.plan.model import Plan
from commsched.program.model import After, Kind, Op

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
    launch = plan.launches[index]
    ops: list[Op] = []
    for number, phase in enumerate(phases_of(plan, index)):
        stem = f"{launch.name}/{phase.name}" if phase.name else launch.name
        parts = [(Kind.ENCODE, encode), (Kind.EXCHANGE, launch.stream), (Kind.DECODE, "decode")]
        if isinstance(phase, Choice):
            parts.insert(0, (Kind.DECIDE, launch.stream))
        for kind, stream in parts:
            ops.append(
                Op(
                    kind=kind,
                    name=f"{stem}/{kind}",
                    stream=stream,
                    after=(before,),
                    launch=index,
                    phase=number,
                )
            )
            before = After(ops[-1].name)
    return ops


def apply_op(plan: Plan, index: int, traffic: float, after: After) -> Op:
    """The update of a launch's elements, which moves `traffic` B in memory for each."""
    launch = plan.launches[index]
    numel = sum(stop - start for _, start, stop in launch.pieces)
    return Op(
        kind=Kind.APPLY,
        name=f"{launch.name}/apply",
        stream="compute",
        after=(after,),
        seconds=numel * traffic / plan.machine.device.bandwidth,
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
        f"{launch.name}/{k}" for k in (Kind.ENCODE, Kind.EXCHANGE, Kind.DECODE)
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
