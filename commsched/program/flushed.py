"""Pipelines that flush: all microbatches forward and backward through all stages, then update."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from commsched.plan.model import Plan
from commsched.program.draft import Draft, received
from commsched.program.launch_ops import OPTIMIZERS
from commsched.program.model import After, Hop, Turn
from commsched.program.stages import Stage, check, compute, finish, turn_end
from commsched.program.strategy import Memory
from commsched.program.tensor_sums import Segment, compute_segments

# (stages, microbatches, number of a stage) -> the stage's computations in order
Order = Callable[[int, int, int], Sequence[Turn]]


class StageWork(NamedTuple):
    """A strategy's additions to the stages' own work."""

    traffic: float  # B moved in memory per element by the update
    extra: Callable[[Stage], float] = lambda stage: stage.head  # s, with every backward
    ready: bool = False  # message-driven: backward first, then the next microbatch
    limit: int = 0  # microbatches in flight; 0: as many as the order allows
    agrees: bool = False  # all ranks decide whether a step counts before they update
    # Of a turn whose ranks sum on the way: its segments. None: it is one computation.
    segments: Callable[[Stage, Turn], Sequence[Segment]] | None = None
    before: Callable[[Stage], Sequence[After]] = lambda stage: ()  # what a stage waits for at first


def all_forward_first(stages: int, microbatches: int, number: int) -> list[Turn]:
    """GPipe: all microbatches forward, then all backward, the last one first.

    Source: Huang et al., "GPipe", NeurIPS 2019.
    """
    turns = [Turn(False, m) for m in range(microbatches)]
    return turns + [Turn(True, m) for m in reversed(range(microbatches))]


def one_forward_one_backward(stages: int, microbatches: int, number: int) -> list[Turn]:
    """1F1B: as many forwards as there are stages behind, then a backward after every forward.

    Source: Narayanan et al., "PipeDream", SOSP 2019; with a flush as in "Megatron-LM", SC 2021.
    """
    ahead = min(microbatches, stages - 1 - number)
    turns = [Turn(False, m) for m in range(ahead)]
    for m in range(microbatches):
        if m + ahead < microbatches:
            turns.append(Turn(False, m + ahead))
        turns.append(Turn(True, m))
    return turns


def as_they_come(stages: int, microbatches: int, number: int) -> list[Turn]:
    """Message-driven: microbatches keep their order in each direction; messages decide the rest.

    Source: Singh & Bhatele, "AxoNN", IPDPS 2022.
    """
    return [Turn(backward, m) for backward in (False, True) for m in range(microbatches)]


def draft_stages(
    draft: Draft, stages: Sequence[Stage], orders: Order, m: int, work: StageWork
) -> None:
    """Append the computations and messages of consecutive stages; at the last one they turn."""
    for place in range(len(stages)):
        for done, turn in enumerate(orders(len(stages), m, place)):
            _turn(draft, stages, place, turn, work, first=done == 0)


def _turn(
    draft: Draft, stages: Sequence[Stage], place: int, turn: Turn, work: StageWork, *, first: bool
) -> None:
    """Add one computation after the message that it needs, and the message that it makes."""
    stage = stages[place]
    number, (backward, m, _) = stage.number, turn
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
    draft = Draft([stage.ranks for stage in stages])
    launches = check(plan, stages)
    agree = work.agrees and any(launches)
    draft_stages(draft, stages, orders, m, work)
    for stage, mine in zip(stages, launches, strict=True):
        last = turn_end(orders(len(stages), m, stage.number)[-1], stage.number)
        finish(draft, plan, stage, mine, last, work.traffic, agree)
    return draft


def memory(
    stages: Sequence[Stage],
    optimizer: str,
    activations: Callable[[Stage], float],
) -> Memory:
    """Bytes on the rank that needs most, if a stage keeps `activations` B."""
    state = OPTIMIZERS[optimizer][0]
    return max(
        (
            Memory(
                parameters=float(stage.nbytes),
                gradients=float(stage.nbytes),
                optimizer=float(state * stage.numel),
                activations=activations(stage),
                buckets=4.0 * stage.numel if stage.replicas > 1 else 0.0,
            )
            for stage in stages
        ),
        key=lambda found: found.total,
    )
