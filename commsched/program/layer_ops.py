"""The computations of a step, layer by layer, for strategies without stages."""

from commsched.net.graph import Layer
from commsched.plan.model import Plan
from commsched.program.model import After, Kind, Op, Turn

DIRECTIONS = {False: "forward", True: "backward"}  # `Turn.backward` -> word in names


def passes(plan: Plan, after: tuple[After, ...]) -> list[Op]:
    """Return the forward and backward of all layers; the first one begins after `after`."""
    layers = plan.net.layers
    ops = [compute(plan, layer, False, () if i else after) for i, layer in enumerate(layers)]
    return ops + [compute(plan, layer, True) for layer in reversed(layers)]


def compute(plan: Plan, layer: Layer, backward: bool, after: tuple[After, ...] = ()) -> Op:
    """Return the forward or backward of a layer."""
    return Op(
        kind=Kind.COMPUTE,
        name=_name(layer.name, backward),
        stream="compute",
        after=after,
        seconds=plan.net.seconds(layer, plan.machine.device)[backward],
        layer=layer.name,
        turn=Turn(backward),
    )


def backward_of(layer: str) -> After:
    """Return the end of a layer's backward."""
    return end_of_layer(layer, backward=True)


def end_of_layer(layer: str, backward: bool) -> After:
    """Return the end of a layer's forward or backward."""
    return After(_name(layer, backward))


def _name(layer: str, backward: bool) -> str:
    return f"{DIRECTIONS[backward]}/{layer}"
