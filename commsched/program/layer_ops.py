"""The computations of a step, layer by layer: what strategies without stages have in common."""

from collections.abc import Sequence

from commsched.net.graph import Layer
from commsched.plan.model import Plan
from commsched.program.model import After, Kind, Op


def passes(plan: Plan, after: tuple[After, ...]) -> list[Op]:
    """Forward and backward of all layers; the first one begins after `after`."""
    layers: Sequence[Layer] = plan.graph.layers
    ops = [compute(plan, layer, "forward", () if i else after) for i, layer in enumerate(layers)]
    return ops + [compute(plan, layer, "backward") for layer in reversed(layers)]


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
