"""The proof of a schedule against two slow interpreters, on schedules right and spoilt."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.machine.model import Group
from commsched.schedule.check import check
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule
from tests.support import sampling

ROUTES = [name for name in COLLECTIVES if name != "native"]
REDUCES = (Goal.ALL_REDUCE, Goal.REDUCE_SCATTER)


def with_rounds(schedule: Schedule, rounds: list[Round]) -> Schedule:
    return replace(schedule, rounds=lambda: iter(rounds))


# --- Two slow interpreters: numbers, and the rules one by one over multisets. ---


def moves(round_: Round) -> Iterator[tuple[int, int, int, int]]:
    for move, (src, dst) in enumerate(zip(round_.src, round_.dst, strict=True)):
        for block in range(round_.first[move], round_.stop[move]):
            yield move, int(src), int(dst), block


def starts_with(schedule: Schedule, rank: int, block: int) -> bool:
    if schedule.goal == Goal.ALL_GATHER:
        return bool(schedule.owner[block] == rank)
    return schedule.goal in REDUCES or block // schedule.ranks == rank


def must_end_with(schedule: Schedule, rank: int, block: int) -> bool:
    if schedule.goal == Goal.REDUCE_SCATTER:
        return bool(schedule.owner[block] == rank)
    return schedule.goal != Goal.ALL_TO_ALL or block % schedule.ranks == rank


def numbers_are_right(schedule: Schedule) -> bool:
    """Sum random integers; what a rank does not hold is taken as 0."""
    ranks, blocks = schedule.ranks, schedule.blocks
    drawn = np.random.default_rng(7).integers(1, 2**48, (ranks, blocks)).tolist()
    value = [
        [drawn[r][b] if starts_with(schedule, r, b) else 0 for b in range(blocks)]
        for r in range(ranks)
    ]
    want = [sum(value[r][b] for r in range(ranks)) for b in range(blocks)]
    for round_ in schedule.rounds():
        sent = [(dst, block, value[src][block]) for _, src, dst, block in moves(round_)]
        for dst, block, number in sent:
            value[dst][block] = number + (value[dst][block] if round_.add else 0)
    return all(
        value[r][b] == want[b]
        for r in range(ranks)
        for b in range(blocks)
        if must_end_with(schedule, r, b)
    )


def form_is_broken(schedule: Schedule) -> bool:
    for round_ in schedule.rounds():
        src, dst = round_.src.tolist(), round_.dst.tolist()
        if not src or len(set(src)) < len(src) or len(set(dst)) < len(dst):
            return True
        if any(s == d for s, d in zip(src, dst, strict=True)):
            return True
        if not set(src + dst) <= set(range(schedule.ranks)):
            return True
        for first, stop in zip(round_.first, round_.stop, strict=True):
            if not 0 <= first < stop <= schedule.blocks:
                return True
    return False


def waiting_is_broken(schedule: Schedule) -> bool:
    """Look through all that came before: nothing sent came too late, nothing is waited for idly."""
    past: list[dict[int, set[int]]] = []  # of each round: receiver -> blocks
    named = 0
    for index, round_ in enumerate(schedule.rounds()):
        waits = index if round_.waits is None else round_.waits
        named = index if round_.waits == index else named
        if waits not in (0, index, named):
            return True
        runs = [set(range(*run)) for run in zip(round_.first, round_.stop, strict=True)]
        for src, run in zip(round_.src.tolist(), runs, strict=True):
            awaited = [received[src] for received in past[:waits] if src in received]
            if awaited and not awaited[-1] & run:
                return True
            if any(run & received.get(src, set()) for received in past[waits:]):
                return True
        past.append(dict(zip(round_.dst.tolist(), runs, strict=True)))
    return False


def content_is_broken(schedule: Schedule) -> bool:
    """Follow multisets of contributions: nothing sent, counted twice, lost, or merged misstated."""
    held = {
        (r, b): Counter({r: 1} if starts_with(schedule, r, b) else {})
        for r in range(schedule.ranks)
        for b in range(schedule.blocks)
    }
    for round_ in schedule.rounds():
        claimed = np.broadcast_to(round_.merged, round_.src.shape)
        sent = [(m, dst, block, held[src, block].copy()) for m, src, dst, block in moves(round_)]
        for move, dst, block, got in sent:
            if got.total() == 0 or got.total() != claimed[move]:
                return True
            if round_.add and schedule.goal not in REDUCES:
                return True
            after = got + held[dst, block] if round_.add else got
            if not held[dst, block] <= after or max(after.values()) > 1:
                return True
            held[dst, block] = after
    return False


def breaks_a_rule(schedule: Schedule) -> bool:
    return form_is_broken(schedule) or waiting_is_broken(schedule) or content_is_broken(schedule)


def raises(schedule: Schedule) -> bool:
    try:
        check(schedule)
    except CommschedError:
        return True
    return False


# --- Mutations: (rounds, generator, ranks, blocks) -> rounds with one thing changed. ---

Rounds = list[Round]
Mutation = Callable[[Rounds, np.random.Generator, int, int], Rounds]


def one_changed(rounds: Rounds, rng: np.random.Generator, **change: Callable) -> Rounds:
    """Change single entries of one random move; the change sees the old value."""
    index = int(rng.integers(len(rounds)))
    columns = {}
    move = int(rng.integers(len(rounds[index].src)))
    for column, new in change.items():
        values = np.array(np.broadcast_to(getattr(rounds[index], column), rounds[index].src.shape))
        values[move] = new(int(values[move]))
        columns[column] = values
    return [*rounds[:index], rounds[index]._replace(**columns), *rounds[index + 1 :]]


def drop_a_move(rounds, rng, ranks, blocks):
    index = int(rng.integers(len(rounds)))
    round_ = rounds[index]
    keep = np.arange(len(round_.src)) != rng.integers(len(round_.src))
    merged = np.broadcast_to(round_.merged, keep.shape)[keep]
    columns = (column[keep] for column in round_[:4])
    kept = Round(*columns, round_.add, merged, round_.waits)
    return [*rounds[:index], *([kept] if keep.any() else []), *rounds[index + 1 :]]


def flip_add(rounds, rng, ranks, blocks):
    index = int(rng.integers(len(rounds)))
    flipped = rounds[index]._replace(add=not rounds[index].add)
    return [*rounds[:index], flipped, *rounds[index + 1 :]]


def misstate_merged(rounds, rng, ranks, blocks):
    return one_changed(rounds, rng, merged=lambda old: old + int(rng.choice([-1, 1])))


def shift_a_run(rounds, rng, ranks, blocks):
    by = int(rng.choice([-1, 1]))
    return one_changed(rounds, rng, first=lambda old: old + by, stop=lambda old: old + by)


def shorten_a_run(rounds, rng, ranks, blocks):
    return one_changed(rounds, rng, stop=lambda old: old - 1)


def lengthen_a_run(rounds, rng, ranks, blocks):
    return one_changed(rounds, rng, stop=lambda old: old + 1)


def change_receiver(rounds, rng, ranks, blocks):
    return one_changed(rounds, rng, dst=lambda old: (old + rng.integers(1, ranks)) % ranks)


def change_sender(rounds, rng, ranks, blocks):
    return one_changed(rounds, rng, src=lambda old: (old + rng.integers(1, ranks)) % ranks)


def turn_a_move_around(rounds, rng, ranks, blocks):
    index = int(rng.integers(len(rounds)))
    src, dst = rounds[index].src.copy(), rounds[index].dst.copy()
    move = int(rng.integers(len(src)))
    src[move], dst[move] = dst[move], src[move]
    return [*rounds[:index], rounds[index]._replace(src=src, dst=dst), *rounds[index + 1 :]]


def repeat_a_round(rounds, rng, ranks, blocks):
    index = int(rng.integers(len(rounds)))
    return [*rounds[: index + 1], *rounds[index:]]


def swap_two_rounds(rounds, rng, ranks, blocks):
    a, b = (int(x) for x in rng.integers(len(rounds), size=2))
    rounds = list(rounds)
    rounds[a], rounds[b] = rounds[b], rounds[a]
    return rounds


def swap_two_receivers(rounds, rng, ranks, blocks):
    index = int(rng.integers(len(rounds)))
    dst = rounds[index].dst.copy()
    a, b = rng.integers(len(dst), size=2)
    dst[a], dst[b] = dst[b], dst[a]
    return [*rounds[:index], rounds[index]._replace(dst=dst), *rounds[index + 1 :]]


def misstate_waits(rounds, rng, ranks, blocks):
    index = int(rng.integers(len(rounds)))
    waits = [None, 0, 1, index // 2, index, index + 1][rng.integers(6)]
    return [*rounds[:index], rounds[index]._replace(waits=waits), *rounds[index + 1 :]]


def leave_alone(rounds, rng, ranks, blocks):
    return rounds


ALWAYS_WRONG = [drop_a_move, flip_add, misstate_merged, shorten_a_run]
SOMETIMES_WRONG = [
    leave_alone,
    misstate_waits,
    shift_a_run,
    lengthen_a_run,
    change_receiver,
    change_sender,
    turn_a_move_around,
    repeat_a_round,
    swap_two_rounds,
    swap_two_receivers,
]


@st.composite
def grids(draw: st.DrawFn) -> Group:
    """Two ranks or more, as many on each node, in any order."""
    nodes, lanes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    assume(nodes * lanes > 1)
    placed = draw(st.permutations([node for node in range(nodes) for _ in range(lanes)]))
    return Group(ranks=tuple(range(nodes * lanes)), nodes=tuple(placed))


def mutant(name: str, group: Group, mutate: Mutation, seed: int) -> Schedule:
    schedule = COLLECTIVES[name](group)
    rng = np.random.default_rng(seed)
    whole = [round_._replace(rows=None) for round_ in schedule.rounds()]
    rounds = mutate(whole, rng, schedule.ranks, schedule.blocks)
    return with_rounds(schedule, rounds)


@pytest.mark.parametrize("mutate", ALWAYS_WRONG)
@given(name=st.sampled_from(ROUTES), group=grids(), seed=st.integers(0, 10**6))
def test_every_move_is_needed_as_it_is(mutate, name, group, seed):
    assert raises(mutant(name, group, mutate, seed))


@pytest.mark.parametrize("mutate", [*ALWAYS_WRONG, *SOMETIMES_WRONG])
@given(name=st.sampled_from(ROUTES), group=grids(), seed=st.integers(0, 10**6))
def test_check_raises_where_a_rule_is_broken_or_numbers_are_wrong(mutate, name, group, seed):
    schedule = mutant(name, group, mutate, seed)
    broken = breaks_a_rule(schedule) or not numbers_are_right(schedule)
    assert raises(schedule) == broken


@settings(max_examples=sampling.examples(200))
@given(name=st.sampled_from(ROUTES), group=grids(), seed=st.integers(0, 10**6), data=st.data())
def test_whatever_passes_the_proof_sums_right(name, group, seed, data):
    chosen = data.draw(st.lists(st.sampled_from(SOMETIMES_WRONG), min_size=2, max_size=2))
    first, second = chosen
    once = mutant(name, group, first, seed)
    rng = np.random.default_rng(seed + 1)
    twice = with_rounds(once, second(list(once.rounds()), rng, once.ranks, once.blocks))
    if not raises(twice):
        assert numbers_are_right(twice)
        assert not breaks_a_rule(twice)
