"""Operations that several strategies are made of."""

from commsched.ir import Layer
from commsched.methods import Choice, phases_of
from commsched.plan.model import Plan
from commsched.program import After, Kind, Op
from commsched.strategies.base import OPTIMIZERS


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


def apply(plan: Plan, index: int, optimizer: str, steps_back: int) -> Op:
    """The update of the parameters of a launch whose result is there."""
    launch = plan.launches[index]
    numel = sum(stop - start for _, start, stop in launch.pieces)
    return Op(
        kind=Kind.APPLY,
        name=f"{launch.name}/apply",
        stream="compute",
        after=(After(exchange(plan, index)[-1].name, steps_back),),
        seconds=numel * OPTIMIZERS[optimizer][1] / plan.machine.device.bandwidth,
        launch=index,
    )


def exchange(plan: Plan, index: int) -> list[Op]:
    """Encode, exchange and decode of every phase of a launch's method."""
    launch = plan.launches[index]
    ops: list[Op] = []
    before = After(f"backward/{launch.after}")
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
