"""Recomputation: activations that are dropped and computed again in the backward pass."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from commsched.net.graph import Net
from commsched.plan.model import Param
from commsched.program.parameters import Parameter, Range
from commsched.program.stages import MOST, Stage, block_cuts, crossing, trunk_of

# number of segments of a stage whose inputs alone are kept; 0: all activations are
PARAMETERS = {"recompute": Parameter(0, Range(0, MOST), (0, 1), learns=False, saves=True)}


class KeptActivations(NamedTuple):
    """Activations of a stage, B."""

    each: float  # of every microbatch that is between its forward and its backward
    once: float  # of the segment that is computed again


def kept(
    net: Net, stages: Sequence[Stage], number: int, settings: Mapping[str, Param]
) -> KeptActivations:
    """Return the bytes of activations that stage `number` keeps.

        recompute = 0   each = A,                        once = 0
        recompute = r   each = sum of the r inputs,      once = the largest A of a segment

    A [B] of the layers; a stage is cut into r segments of nearly equal A, or as many as it has
    layers. `message_bytes` cross a cut, or the layers' stated activations; the net's own input
    counts 0.
    Source: Chen, Xu, Zhang & Guestrin, "Training deep nets with sublinear memory cost", 2016.
    """
    stage, segments = stages[number], int(settings.get("recompute", 0))
    if not segments:
        return KeptActivations(stage.activation, 0.0)
    sizes, cuts = [layer.activation for layer in stage.layers], cuts_of(stage, segments)
    trunk, message = trunk_of(net), float(settings.get("message_bytes", 0.0))
    first = trunk.index(stage.layers[0])
    inputs = float(stages[number - 1].output) if number else 0.0
    inputs += sum(message or crossing(trunk, first + cut) for cut in cuts[1:-1])
    return KeptActivations(inputs, max(sum(sizes[a:b]) for a, b in pairwise(cuts)))


def cuts_of(stage: Stage, segments: int) -> list[int]:
    """Return the layers at which a stage's segments begin, and behind them the stage's end.

    There are at most as many as layers; the largest segment is as small as possible.
    """
    sizes = [layer.activation for layer in stage.layers]
    return block_cuts(stage.layers, sizes, min(segments, len(sizes)))


def repeated(stage: Stage, settings: Mapping[str, Param]) -> float:
    """Return the seconds of the forward that the backward of a microbatch repeats."""
    return stage.forward if settings.get("recompute", 0) else 0.0
