"""Operations that several strategies are made of."""

from commsched.ir import Layer
from commsched.methods import Choice, phases_of
from commsched.plan.model import Plan
from commsched.program import After, Kind, Op

# Bytes of optimiser state per parameter, and memory traffic of one update in B per parameter:
# read gradient, read and write the parameter and each state word.
OPTIMIZERS = {"sgd": (0, 12), "momentum": (4, 20), "adam": (8, 28)}


def compute(plan: Plan, layer: Layer, direction: str, after: tuple[After, ...] = ()) -> Op:
    """Forward or backward of a layer."""
    forward, backward = plan.graph.seconds(layer, plan.machine.device)
    return Op(
        kind=Kind.COMPUTE,
        name=f"{direction}/{layer.name}",
        stream="compute",
        after=after,
        seconds=forward if direction == "forward" else backward,
        layer=layer.name,
    )


def exchange(plan: Plan, index: int, before: After | None = None) -> list[Op]:
    """Encode, exchange and decode of every phase of a launch's method.

    They follow `before`: unless given, the backward pass of the layer that completes the bucket.
    """
    launch = plan.launches[index]
    ops: list[Op] = []
    before = before or After(f"backward/{launch.after}")
    for number, phase in enumerate(phases_of(plan, index)):
        stem = f"{launch.name}/{phase.name}" if phase.name else launch.name
        parts = [(Kind.ENCODE, "encode"), (Kind.EXCHANGE, launch.stream), (Kind.DECODE, "decode")]
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


def exchanged(plan: Plan, index: int, steps_back: int = 0) -> After:
    """The end of a launch's exchange."""
    return After(exchange(plan, index)[-1].name, steps_back)


def apply(plan: Plan, index: int, traffic: float, after: After) -> Op:
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
