"""Computations of tensor-parallel ranks, which sum their parts of activations on the way."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from commsched.net.graph import Layer
from commsched.net.tensor_cut import gathers, sums
from commsched.plan.model import Plan
from commsched.program.draft import Draft
from commsched.program.launch_ops import exchange_ops
from commsched.program.layer_ops import DIRECTIONS
from commsched.program.model import After, Kind, Op, Turn
from commsched.program.stages import Stage, turn_end

# Collectives after which, or before which, each rank owns the run of the tokens at its place.
SCATTERS = "reduce-scatter", "reduce-scatter-direct"
SPREADS = "all-gather", "all-gather-direct"
OWN = (Kind.ENCODE, Kind.DECODE)  # by the communication thread: no other work waits for it


class StageSums(NamedTuple):
    """The launches of a stage's activations, each by the number of elements."""

    sums: dict[int, int]  # on every rank, or on the owner of each token
    gathers: dict[int, int]  # of tokens from their owners; {}: ranks share none


class Segment(NamedTuple):
    """Consecutive computations of one turn, and the exchange behind them."""

    seconds: float
    done: tuple[str, ...]  # layers whose backward is complete at its end
    exchange: Callable[[After, str], Sequence[Op]] | None  # (after, where) -> ops; last: None


class Visit(NamedTuple):
    """Forward or backward of a layer."""

    layer: Layer
    backward: bool


def visits(layers: Sequence[Layer], cuts: Sequence[int], backward: bool) -> Iterator[Visit]:
    """Yield what a turn computes; a segment between `cuts` is repeated before its backward."""
    if not backward:
        yield from (Visit(layer, False) for layer in layers)
        return
    for start, stop in reversed([*pairwise(cuts or (0, len(layers)))]):
        if cuts:
            yield from (Visit(layer, False) for layer in layers[start:stop])
        yield from (Visit(layer, True) for layer in reversed(layers[start:stop]))


def segments(plan: Plan, launches: StageSums, path: Iterator[Visit]) -> tuple[Segment, ...]:
    """Divide a turn at its exchanges: a layer gathers tokens before its work, and sums after it.

    Work of a layer after its own sum is part of the next segment.
    """
    found: list[Segment] = []
    seconds, done = 0.0, list[str]()

    def pause(launch: int) -> None:
        nonlocal seconds, done
        found.append(Segment(seconds, tuple(done), partial(exchange_ops, plan, launch, own=OWN)))
        seconds, done = 0.0, []

    for layer, backward in path:
        for _ in range(gathers(layer, backward) if launches.gathers else 0):
            pause(launches.gathers[layer.summed])
        seconds += plan.net.seconds(layer, plan.machine.device)[backward]
        if sums(layer, backward) and layer.summed in launches.sums:
            pause(launches.sums[layer.summed])
        done += [layer.name] if backward else []
    return (*found, Segment(seconds, tuple(done), None))


def segment_end(turn: Turn, stage: int, place: int, count: int) -> After:
    """Return the end of a segment of a turn; the last one's name is that of the turn."""
    end = turn_end(turn, stage)
    return end if place == count - 1 else After(f"{end.name}/{place}")


def compute_segments(
    draft: Draft, stage: Stage, turn: Turn, parts: Sequence[Segment], after: Sequence[After]
) -> After:
    """Append a turn's computations and sums, one after the other; returns its end."""
    before = tuple(after)
    for place, segment in enumerate(parts):
        end = segment_end(turn, stage.number, place, len(parts))
        op = Op(
            kind=Kind.COMPUTE,
            name=end.name,
            stream="compute",
            after=before,
            seconds=segment.seconds,
            layer=stage.layers[0].name,
            turn=turn,
        )
        draft.add(stage.number, op)
        if segment.exchange is not None:
            where = f"{DIRECTIONS[turn.backward]}/m{turn.microbatch}/{place}"
            ops = [replace(own, turn=turn) for own in segment.exchange(end, where)]
            draft.add(stage.number, *ops)
            end = After(ops[-1].name)
        before = (end,)
    return end
