"""Pipelines that flush: all microbatches forward and backward through all stages, then update."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from commsched.arrays import Ints
from commsched.plan.model import Plan
from commsched.program.draft import Draft, received
from commsched.program.launch_ops import OPTIMIZERS, beside_buckets, launches_of_layers
from commsched.program.message_coding import coding_of
from commsched.program.model import After, Hop, Turn
from commsched.program.recompute import KeptActivations
from commsched.program.stages import Stage, check, compute, dealt, finish, turn_end
from commsched.program.strategy import Memory
from commsched.program.tensor_sums import Segment, compute_segments

# (ranks in a pipeline, microbatches, a rank's place, its stages) -> its computations in order
Order = Callable[[int, int, int, int], Sequence[Turn]]


class StageWork(NamedTuple):
    """A strategy's additions to the stages' own work."""

    traffic: float  # B moved in memory per element by the update
    extra: Callable[[Stage], float] = lambda stage: stage.head  # s, with every backward
    ready: bool = False  # message-driven: backward first, then the next microbatch
    limit: int = 0  # microbatches in flight; 0: as many as the order allows
    agrees: bool = False  # all ranks decide whether a step counts before they update
    # The segments of a turn whose ranks sum activations on the way. None: it is one computation.
    segments: Callable[[Stage, Turn], Sequence[Segment]] | None = None
    before: Callable[[Stage], Sequence[After]] = lambda stage: ()  # inputs of its first turn


def all_forward_first(ranks: int, microbatches: int, place: int, chunks: int = 1) -> list[Turn]:
    """GPipe: all microbatches forward, then all backward, the last one first.

    Source: Huang et al., "GPipe", NeurIPS 2019.
    """
    turns = [Turn(False, m) for m in range(microbatches)]
    return turns + [Turn(True, m) for m in reversed(range(microbatches))]


def one_forward_one_backward(
    ranks: int, microbatches: int, place: int, chunks: int = 1
) -> list[Turn]:
    """1F1B: first as many forwards as below, then a backward after every forward.

        K - 1 - k                    with one stage on each rank
        (V - 1) K + 2 (K - 1 - k)    with V > 1: K microbatches through a stage, then the next

    K = ranks in a pipeline; k = the place of a rank; V = its stages.
    Source: Narayanan et al., "PipeDream", SOSP 2019; with a flush, and interleaved (V > 1), as in
    "Megatron-LM", SC 2021, section 2.2, and its schedules.py.
    """
    ahead = ranks - 1 - place
    if chunks > 1:
        ahead = (chunks - 1) * ranks + 2 * ahead
    forwards = [Turn(False, m, chunk=c) for m, c in _in_groups(ranks, microbatches, chunks)]
    backwards = [
        Turn(True, m, chunk=chunks - 1 - c) for m, c in _in_groups(ranks, microbatches, chunks)
    ]
    turns = forwards[:ahead]
    for number, backward in enumerate(backwards):
        turns += [*forwards[ahead + number : ahead + number + 1], backward]
    return turns


def _in_groups(ranks: int, microbatches: int, chunks: int) -> list[tuple[int, int]]:
    """List (microbatch, chunk): groups of `ranks` microbatches pass one chunk after another."""
    group = ranks if chunks > 1 else microbatches
    return [
        (first + m, chunk)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for m in range(group)
    ]


def most_kept(
    order: Order, stages: int, microbatches: int, place: int, kept: Sequence[KeptActivations]
) -> float:
    """Return the most bytes of activations that a rank keeps; `kept`: of each of its stages."""
    many = _between(order, stages // len(kept), microbatches, place, len(kept))
    each = float((many @ np.array([one.each for one in kept])).max())
    return each + max(one.once for one in kept)


@lru_cache(maxsize=256)
def _between(order: Order, ranks: int, microbatches: int, place: int, chunks: int) -> Ints:
    """Count the microbatches between forward and backward on a rank: (moments, chunks)."""
    turns = order(ranks, microbatches, place, chunks)
    found = np.zeros((len(turns), chunks), np.int64)
    at = [turn.chunk for turn in turns]
    found[np.arange(len(turns)), at] = [-1 if turn.backward else 1 for turn in turns]
    return np.unique(found.cumsum(axis=0), axis=0)


def as_they_come(ranks: int, microbatches: int, place: int, chunks: int = 1) -> list[Turn]:
    """Message-driven: microbatches keep their order in each direction; messages decide the rest.

    Source: Singh & Bhatele, "AxoNN", IPDPS 2022.
    """
    return [Turn(backward, m) for backward in (False, True) for m in range(microbatches)]


def draft_stages(
    draft: Draft, stages: Sequence[Stage], orders: Order, m: int, work: StageWork
) -> None:
    """Append the computations and messages of stages in a row; the last one turns to backward."""
    ranks = len(dealt(stages))
    for place in range(ranks):
        begun = set[int]()
        for turn in orders(ranks, m, place, len(stages) // ranks):
            at = turn.chunk * ranks + place
            _turn(draft, stages, at, turn, work, first=at not in begun)
            begun.add(at)


def _turn(
    draft: Draft, stages: Sequence[Stage], place: int, turn: Turn, work: StageWork, *, first: bool
) -> None:
    """Add one computation after the message that it needs, and the message that it sends."""
    stage = stages[place]
    number, backward, m = stage.number, turn.backward, turn.microbatch
    after = [*work.before(stage)] if first else []
    if not backward:
        if number > 0:
            after.append(received(Hop(number - 1, number, m)))
        if work.limit and place == 0 and m >= work.limit:
            after.append(turn_end(Turn(True, m - work.limit), number))
    elif place == len(stages) - 1:
        after.append(turn_end(Turn(False, m), number))
    else:
        after.append(received(Hop(number + 1, number, m)))
    urgency = int(work.ready and not backward)
    if work.segments is not None:
        done = compute_segments(draft, stage, turn, work.segments(stage, turn), after)
    else:
        seconds = stage.backward + work.extra(stage) if backward else stage.forward
        done = compute(draft, stage, turn, seconds, after, urgency)
    if backward and place > 0:
        draft.message(Hop(number, number - 1, m), stages[place - 1].output, done, urgency)
    if not backward and not stage.last:
        draft.message(Hop(number, number + 1, m), stage.output, done, urgency)


def flushed(plan: Plan, stages: Sequence[Stage], orders: Order, m: int, work: StageWork) -> Draft:
    """Build one step: the pipeline, every stage's exchanges among its replicas, then updates."""
    draft = Draft([held[0].ranks for held in dealt(stages)], coding_of(plan))
    launches = check(plan, stages)
    agree = work.agrees and any(launches)
    draft_stages(draft, stages, orders, m, work)
    for stage, last in last_turns(stages, orders, m):
        end = turn_end(last, stage.number)
        finish(draft, plan, stage, launches[stage.number], end, work.traffic, agree)
    return draft


def last_turns(stages: Sequence[Stage], orders: Order, m: int) -> list[tuple[Stage, Turn]]:
    """Return each stage and its last computation; those of a rank in the order of their ends."""
    found, roles = [], dealt(stages)
    for place, held in enumerate(roles):
        ends: dict[int, Turn] = {}
        for turn in orders(len(roles), m, place, len(held)):
            ends.pop(turn.chunk, None)
            ends[turn.chunk] = turn
        found += [(held[turn.chunk], turn) for turn in ends.values()]
    return found


def memory(
    plan: Plan,
    stages: Sequence[Stage],
    optimizer: str,
    activations: Callable[[Sequence[Stage]], float],
) -> Memory:
    """Return the bytes on the rank that needs most; its stages keep `activations` B."""
    state = OPTIMIZERS[optimizer][0]

    def of(held: Sequence[Stage]) -> Memory:
        numel, nbytes = sum(stage.numel for stage in held), sum(stage.nbytes for stage in held)
        layers = [layer for stage in held for layer in stage.layers]
        return Memory(
            parameters=float(nbytes),
            gradients=float(nbytes),
            optimizer=float(state * numel),
            activations=activations(held),
            buckets=4.0 * numel if held[0].replicas > 1 else 0.0,
            **beside_buckets(plan, launches_of_layers(plan, layers)),
        )

    return max(map(of, dealt(stages)), key=lambda found: found.total)
