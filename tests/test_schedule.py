"""What the proof of a schedule says, which sums are exclusive, and the readers of schedules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.machine.model import Group
from commsched.schedule.check import check, exclusive
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule, unseen
from commsched.schedule.text import dumps
from commsched.schedule.view import moves_of

ROUTES = [name for name in COLLECTIVES if name != "native"]


def flat(size: int) -> Group:
    return Group(ranks=tuple(range(size)), nodes=(0,) * size)


def with_rounds(schedule: Schedule, rounds: list[Round]) -> Schedule:
    return replace(schedule, rounds=lambda: iter(rounds))


def made_by_hand(text: str, ranks: int = 2, blocks: int = 1, **keys: object) -> Schedule:
    """Read rounds as `dumps` writes them; merged from a dictionary of round -> value, else 1."""
    rounds = []
    merged = keys.pop("merged", {})
    for index, whole_line in enumerate(text.splitlines()):
        line, _, waits = whole_line.partition(" waits=")
        moves = []
        for move in line.split():
            pair, run = move.rstrip("+").split(":")
            low, _, high = run.partition("-")
            moves.append((*map(int, pair.split(">")), int(low), int(high or low) + 1))
        columns = np.array(moves, dtype=np.int64).reshape(-1, 4).T
        after = int(waits) if waits else None
        rounds.append(Round(*columns, line.endswith("+"), merged.get(index, 1), after))
    made = Schedule(name="made", goal=Goal.ALL_REDUCE, ranks=ranks, blocks=blocks)
    return with_rounds(replace(made, **keys), rounds)


@st.composite
def grids(draw: st.DrawFn) -> Group:
    """Two ranks or more, as many on each node, in any order."""
    nodes, lanes = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    assume(nodes * lanes > 1)
    placed = draw(st.permutations([node for node in range(nodes) for _ in range(lanes)]))
    return Group(ranks=tuple(range(nodes * lanes)), nodes=tuple(placed))


# --- Messages. ---


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (made_by_hand("0>1:0+"), "made: rank 0 ends without the data of rank 1 in block 0"),
        (
            made_by_hand("0>1:0+\n0>1:0+"),
            "made, round 1: block 0 from rank 0 to rank 1: the data of rank 0 would be added twice",
        ),
        (
            made_by_hand("0>1:0"),
            "made, round 0: block 0 from rank 0 to rank 1: the data of rank 1 would be lost",
        ),
        (
            made_by_hand("0>1:0+", merged={0: 2}),
            "made, round 0: block 0 from rank 0 to rank 1: it sums 1 ranks, but merged says 2",
        ),
        (
            made_by_hand("0>1:0", ranks=3, goal=Goal.ALL_GATHER, owner=np.array([2])),
            "made, round 0: block 0 from rank 0 to rank 1: the sender does not hold it",
        ),
        (
            made_by_hand("0>1:0+", goal=Goal.ALL_GATHER, owner=np.array([0])),
            "made, round 0: adds, but the goal is all-gather",
        ),
        (
            made_by_hand("0>1:0", ranks=3, goal=Goal.ALL_GATHER, owner=np.array([0])),
            "made: rank 2 ends without block 0",
        ),
        (
            made_by_hand("0>1:1-2+\n1>0:0+", blocks=3),
            "made, round 1: rank 1 waits for blocks 1-2 before it sends block 0, which does not"
            " depend on it; change the order of the rounds, or say what this one `waits` for",
        ),
        (
            made_by_hand("0>1:0+\n1>0:0+ waits=0"),
            "made, round 1: block 0 from rank 1 to rank 0: it was received in round 0, but waits"
            " says 0",
        ),
        (
            made_by_hand("0>1:0+\n1>2:0+\n2>0:0+ waits=1", ranks=3, merged={1: 2, 2: 3}),
            "made, round 2: waits must be 0, 2 (all rounds before), or the last other value,"
            " 0; got 1",
        ),
        (
            made_by_hand("0>1:0+ 0>2:0+", ranks=3),
            "made, round 0: rank 0 sends twice; use one more round",
        ),
        (
            made_by_hand("0>2:0+ 1>2:0+", ranks=3),
            "made, round 0: rank 2 receives twice; use one more round",
        ),
        (made_by_hand("0>2:0+"), "made, round 0: rank 2 receives; ranks are 0..1"),
        (made_by_hand("1>1:0+"), "made, round 0: rank 1 sends to itself"),
        (
            made_by_hand("0>1:0-1+"),
            "made, round 0: rank 0 sends blocks [0, 2); a run must not be empty, and blocks are"
            " 0..0",
        ),
        (made_by_hand("\n0>1:0+"), "made, round 0: has no moves; leave the round out"),
        (
            made_by_hand("0>1:0+", merged={0: np.ones(2, dtype=np.int64)}),
            "made, round 0: merged must be one number or one per move",
        ),
        (
            made_by_hand("", goal=Goal.REDUCE_SCATTER, owner=np.array([2])),
            "made: owner must name a rank (0..1) for each of 1 blocks",
        ),
        (
            made_by_hand("", goal=Goal.ALL_TO_ALL),
            "made: an all-to-all of 2 ranks has 4 blocks, got 1",
        ),
        (
            made_by_hand("", ranks=0),
            "made: ranks and blocks must be at least 1, got 0 ranks and 1 blocks",
        ),
        (
            replace(COLLECTIVES["all-to-all"](flat(2)), name="made", rounds=unseen),
            "made: only an all-reduce can be left to the MPI library",
        ),
    ],
)
def test_the_proof_says_what_is_wrong(schedule, message):
    with pytest.raises(CommschedError) as raised:
        check(schedule)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("first", np.zeros(2, dtype=np.int64), "must be arrays of one length"),
        ("first", np.zeros(1), "must be integers"),
        ("src", [0], "must be arrays of one length"),
    ],
)
def test_the_proof_refuses_columns_of_the_wrong_kind(column, value, message):
    good = made_by_hand("0>1:0+")
    with pytest.raises(CommschedError, match=message):
        check(with_rounds(good, [next(good.rounds())._replace(**{column: value})]))


def test_the_proof_reaches_beyond_one_machine_word():
    for size in (64, 65, 130):
        check(COLLECTIVES["halving-doubling"](flat(size)))
    schedule = COLLECTIVES["tree"](flat(130))
    shortened = [r for r in schedule.rounds() if not (r.src == 128).any()]
    with pytest.raises(CommschedError, match="to rank 128: it sums 128 ranks, but merged says 130"):
        check(with_rounds(schedule, shortened))


# --- Readers. ---


def test_rounds_that_wait_for_too_much_are_found():
    direct = COLLECTIVES["direct"](flat(3))
    lazy = [round_._replace(waits=None) for round_ in direct.rounds()]
    with pytest.raises(CommschedError, match=r"direct, round 1: .* which does not depend on it"):
        check(with_rounds(direct, lazy))


def test_rounds_that_wait_for_too_little_are_found():
    direct = COLLECTIVES["direct"](flat(3))
    hasty = [round_._replace(waits=0) for round_ in direct.rounds()]
    with pytest.raises(CommschedError, match=r"round 2: .* received in round 1, but waits says 0"):
        check(with_rounds(direct, hasty))


def test_rows_that_are_not_what_is_carried_are_found():
    ring = COLLECTIVES["ring"](flat(3))
    rounds = list(ring.rounds())
    rounds[1] = rounds[1]._replace(rows=rounds[0].rows)
    with pytest.raises(CommschedError, match="ring, round 1: first and stop are not the rows"):
        check(with_rounds(ring, rounds))


@given(group=grids())
def test_only_doubling_keeps_a_contribution_in_two_sums(group):
    shared = {name for name in ROUTES if not exclusive(COLLECTIVES[name](group))}
    assert shared == {"doubling"} == {name for name in ROUTES if COLLECTIVES[name](group).shared}


def test_a_route_that_cannot_be_seen_is_not_exclusive():
    assert not exclusive(COLLECTIVES["native"](flat(2)))


def test_a_sum_that_is_copied_before_it_is_whole_is_not_exclusive():
    copied = made_by_hand("1>0:0+\n0>1:0\n2>0:0+\n0>2:0\n0>1:0", ranks=3)
    merged = [1, 2, 1, 3, 3]
    rounds = [r._replace(merged=m) for r, m in zip(copied.rounds(), merged, strict=True)]
    check(with_rounds(copied, rounds))
    assert not exclusive(copied)


@given(name=st.sampled_from(ROUTES), group=grids())
def test_what_the_ranks_see_is_what_the_rounds_say(name, group):
    schedule = COLLECTIVES[name](group)
    seen = [moves_of(schedule, rank) for rank in range(schedule.ranks)]
    sends = {(m.round, rank, *m[1:]) for rank, (out, _) in enumerate(seen) for m in out}
    receives = {
        (m.round, m.peer, rank, *m[2:]) for rank, (_, incoming) in enumerate(seen) for m in incoming
    }
    want = {
        (index, *(int(x) for x in move), round_.add)
        for index, round_ in enumerate(schedule.rounds())
        for move in zip(*round_[:4], strict=True)
    }
    assert sends == receives == want
    for lists in seen:
        for found in lists:
            indices = [m.round for m in found]
            assert indices == sorted(set(indices))


def test_one_rank_of_a_tree_sees_its_own_moves():
    sends, receives = moves_of(COLLECTIVES["tree"](flat(5)), 2)
    assert [tuple(m) for m in sends] == [(1, 0, 0, 1, True), (5, 3, 0, 1, False)]
    assert [tuple(m) for m in receives] == [(0, 3, 0, 1, True), (4, 0, 0, 1, False)]


def test_text_names_runs_and_the_library_has_only_a_header():
    wide = made_by_hand("1>0:2-5+ 0>1:0+", blocks=6, name="wide")
    assert dumps(wide) == "wide goal=all-reduce ranks=2 blocks=6\n0>1:0+ 1>0:2-5+\n"
    assert dumps(COLLECTIVES["native"](flat(2))) == "native goal=all-reduce ranks=2 blocks=1\n"


@given(name=st.sampled_from(ROUTES), group=grids())
def test_text_says_all_but_merged(name, group):
    schedule = COLLECTIVES[name](group)
    header, _, body = dumps(schedule).partition("\n")
    keys = {"ranks": group.size, "blocks": schedule.blocks, "name": name, "goal": schedule.goal}
    again = made_by_hand(body, **keys)
    assert header == f"{name} goal={schedule.goal} ranks={group.size} blocks={schedule.blocks}"
    assert dumps(again) == dumps(schedule)
