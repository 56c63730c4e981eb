"""Every collective takes the same exam; goldens, and what the textbooks say about each."""

from fractions import Fraction
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched.errors import CommschedError
from commsched.machine.model import Group
from commsched.schedule.check import check
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round
from commsched.schedule.text import dumps

NAMES = list(COLLECTIVES)
ROUTES = [name for name in NAMES if name != "native"]
EVEN = ("all-to-all-rails", "hierarchical")  # need equally many ranks on each node
ANY_SHAPE = [name for name in NAMES if name not in EVEN]


def placed(*nodes: int) -> Group:
    """A group whose member i sits on node nodes[i]."""
    return Group(ranks=tuple(range(len(nodes))), nodes=nodes)


def flat(size: int) -> Group:
    return placed(*[0] * size)


def grid(nodes: int, lanes: int) -> Group:
    return placed(*[node for node in range(nodes) for _ in range(lanes)])


def dealt(nodes: int, lanes: int) -> Group:
    """Ranks dealt to the nodes like cards."""
    return placed(*[node for _ in range(lanes) for node in range(nodes)])


def rounds_of(name: str, group: Group) -> list[Round]:
    return list(COLLECTIVES[name](group).rounds())


def sent(name: str, group: Group) -> list[Fraction]:
    """What each rank sends, as a share of the tensor."""
    return totals(name, group, lambda round_: round_.src)


def received(name: str, group: Group) -> list[Fraction]:
    return totals(name, group, lambda round_: round_.dst)


def totals(name, group, side) -> list[Fraction]:
    schedule = COLLECTIVES[name](group)
    blocks = np.zeros(group.size, dtype=np.int64)
    for round_ in schedule.rounds():
        np.add.at(blocks, side(round_), round_.stop - round_.first)
    return [Fraction(int(count), schedule.blocks) for count in blocks]


# --- The exam. ---


@pytest.mark.parametrize("size", range(1, 18))
@pytest.mark.parametrize("name", NAMES)
def test_every_collective_is_proved_on_one_node(name, size):
    check(COLLECTIVES[name](flat(size)))


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (2, 3), (3, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("place", [grid, dealt])
@pytest.mark.parametrize("name", NAMES)
def test_every_collective_is_proved_on_a_grid(name, place, shape):
    check(COLLECTIVES[name](place(*shape)))


@given(name=st.sampled_from(ANY_SHAPE), nodes=st.lists(st.integers(0, 4), min_size=1, max_size=24))
def test_every_flat_collective_is_proved_wherever_ranks_sit(name, nodes):
    check(COLLECTIVES[name](placed(*nodes)))


@given(nodes=st.integers(1, 5), lanes=st.integers(1, 5), data=st.data())
def test_those_of_equal_nodes_are_proved_wherever_ranks_sit(nodes, lanes, data):
    order = data.draw(st.permutations([node for node in range(nodes) for _ in range(lanes)]))
    for name in EVEN:
        check(COLLECTIVES[name](placed(*order)))


@pytest.mark.parametrize("name", NAMES)
def test_a_schedule_carries_its_registered_name_and_says_where_it_comes_from(name):
    assert COLLECTIVES[name](flat(3)).name == name
    assert {"Good", "Source:"} <= set(COLLECTIVES[name].__doc__.split())


@pytest.mark.parametrize("name", ROUTES)
def test_one_rank_has_nothing_to_do(name):
    assert rounds_of(name, flat(1)) == []


@pytest.mark.parametrize("name", ROUTES)
def test_a_schedule_can_be_read_twice(name):
    schedule = COLLECTIVES[name](grid(2, 3))
    assert dumps(schedule) == dumps(schedule)


@given(name=st.sampled_from(ROUTES), size=st.integers(2, 17))
def test_merged_is_one_number_where_all_moves_agree(name, size):
    for round_ in rounds_of(name, flat(size)):
        if not isinstance(round_.merged, int):
            assert len(set(round_.merged.tolist())) > 1


@given(size=st.integers(3, 17), name=st.sampled_from(["ring", "doubling", "tree", "all-gather"]))
def test_where_each_move_forwards_the_last_one_rounds_wait_for_all_before(name, size):
    assert {round_.waits for round_ in rounds_of(name, flat(size))} == {None}


def test_where_owners_are_served_directly_rounds_do_not_wait_for_each_other():
    waits = [round_.waits for round_ in rounds_of("direct", flat(4))]
    assert waits == [0, 0, 0, 3, 3, 3]
    for name in ("reduce-scatter-direct", "all-gather-direct", "all-to-all"):
        assert {round_.waits for round_ in rounds_of(name, flat(4))} == {0}


@given(name=st.sampled_from(ROUTES), group=st.sampled_from([flat(7), grid(3, 4), dealt(2, 3)]))
def test_rows_are_what_a_round_carries(name, group):
    for round_ in rounds_of(name, group):
        if round_.rows is not None:
            rows = slice(round_.rows.start, round_.rows.start + len(round_.src))
            np.testing.assert_array_equal(round_.first, round_.rows.first[rows])
            np.testing.assert_array_equal(round_.stop, round_.rows.stop[rows])


@pytest.mark.parametrize("name", ["ring", "direct", "hierarchical", "all-gather", "reduce-scatter"])
def test_circles_keep_their_tables(name):
    tables = {id(round_.rows.first) for round_ in rounds_of(name, grid(3, 4))}
    assert len(tables) == (2 if name == "hierarchical" else 1)


@pytest.mark.parametrize("name", EVEN)
def test_unequal_nodes_are_refused(name):
    with pytest.raises(CommschedError, match="different numbers of ranks"):
        COLLECTIVES[name](placed(0, 0, 1))


def test_the_library_keeps_its_own_route():
    native = COLLECTIVES["native"](flat(5))
    assert (native.library, native.blocks, native.goal) == (True, 1, Goal.ALL_REDUCE)


@pytest.mark.parametrize(
    "name",
    ["all-gather", "all-gather-direct", "reduce-scatter", "reduce-scatter-direct"],
)
def test_rank_r_owns_block_r(name):
    np.testing.assert_array_equal(COLLECTIVES[name](dealt(2, 3)).owner, np.arange(6))


# --- Goldens, to check by eye. ---

GOLDENS = [
    (
        "ring",
        flat(3),
        """\
ring goal=all-reduce ranks=3 blocks=3
0>1:2+ 1>2:0+ 2>0:1+
0>1:1+ 1>2:2+ 2>0:0+
0>1:0 1>2:1 2>0:2
0>1:2 1>2:0 2>0:1
""",
    ),
    (
        "ring",
        placed(0, 1, 0, 1),
        """\
ring goal=all-reduce ranks=4 blocks=4
0>2:3+ 1>3:2+ 2>1:0+ 3>0:1+
0>2:1+ 1>3:0+ 2>1:3+ 3>0:2+
0>2:2+ 1>3:3+ 2>1:1+ 3>0:0+
0>2:0 1>3:1 2>1:2 3>0:3
0>2:3 1>3:2 2>1:0 3>0:1
0>2:1 1>3:0 2>1:3 3>0:2
""",
    ),
    (
        "doubling",
        flat(5),
        """\
doubling goal=all-reduce ranks=5 blocks=1
1>0:0+
0>2:0+ 2>0:0+ 3>4:0+ 4>3:0+
0>3:0+ 2>4:0+ 3>0:0+ 4>2:0+
0>1:0
""",
    ),
    (
        "halving-doubling",
        flat(4),
        """\
halving-doubling goal=all-reduce ranks=4 blocks=4
0>1:2-3+ 1>0:0-1+ 2>3:2-3+ 3>2:0-1+
0>2:1+ 1>3:3+ 2>0:0+ 3>1:2+
0>2:0 1>3:2 2>0:1 3>1:3
0>1:0-1 1>0:2-3 2>3:0-1 3>2:2-3
""",
    ),
    (
        "halving-doubling",
        flat(6),
        """\
halving-doubling goal=all-reduce ranks=6 blocks=4
1>0:0-3+ 3>2:0-3+
0>2:2-3+ 2>0:0-1+ 4>5:2-3+ 5>4:0-1+
0>4:1+ 2>5:3+ 4>0:0+ 5>2:2+
0>4:0 2>5:2 4>0:1 5>2:3
0>2:0-1 2>0:2-3 4>5:0-1 5>4:2-3
0>1:0-3 2>3:0-3
""",
    ),
    (
        "tree",
        flat(5),
        """\
tree goal=all-reduce ranks=5 blocks=1
1>0:0+ 3>2:0+
2>0:0+
4>0:0+
0>4:0
0>2:0
0>1:0 2>3:0
""",
    ),
    (
        "direct",
        flat(3),
        """\
direct goal=all-reduce ranks=3 blocks=3
0>1:1+ 1>2:2+ 2>0:0+ waits=0
0>2:2+ 1>0:0+ 2>1:1+ waits=0
0>1:0 1>2:1 2>0:2 waits=2
0>2:0 1>0:1 2>1:2 waits=2
""",
    ),
    (
        "hierarchical",
        grid(2, 2),
        """\
hierarchical goal=all-reduce ranks=4 blocks=4
0>1:2-3+ 1>0:0-1+ 2>3:2-3+ 3>2:0-1+
0>2:1+ 1>3:3+ 2>0:0+ 3>1:2+
0>2:0 1>3:2 2>0:1 3>1:3
0>1:0-1 1>0:2-3 2>3:0-1 3>2:2-3
""",
    ),
    (
        "all-to-all",
        flat(3),
        """\
all-to-all goal=all-to-all ranks=3 blocks=9
0>1:1 1>2:5 2>0:6 waits=0
0>2:2 1>0:3 2>1:7 waits=0
""",
    ),
]


@pytest.mark.parametrize(("name", "group", "text"), GOLDENS)
def test_golden(name, group, text):
    assert dumps(COLLECTIVES[name](group)) == text


# --- What the textbooks say. ---


@given(p=st.integers(1, 40), name=st.sampled_from(["ring", "direct"]))
def test_ring_and_direct_send_the_least_in_the_most_rounds(p, name):
    assert len(rounds_of(name, flat(p))) == 2 * (p - 1)
    assert sent(name, flat(p)) == received(name, flat(p)) == [Fraction(2 * (p - 1), p)] * p


@given(p=st.integers(1, 40))
def test_half_an_all_reduce_costs_half(p):
    halves = ["reduce-scatter", "reduce-scatter-direct", "all-gather", "all-gather-direct"]
    for name in halves:
        assert len(rounds_of(name, flat(p))) == p - 1
        assert sent(name, flat(p)) == received(name, flat(p)) == [Fraction(p - 1, p)] * p


@given(p=st.integers(1, 24))
def test_all_to_all_sends_each_rank_its_block(p):
    assert len(rounds_of("all-to-all", flat(p))) == p - 1
    assert sent("all-to-all", flat(p)) == [Fraction(p - 1, p * p)] * p


@given(k=st.integers(0, 5))
def test_powers_of_two_need_no_folding(k):
    p = 2**k
    assert len(rounds_of("doubling", flat(p))) == k
    assert sent("doubling", flat(p)) == [Fraction(k)] * p
    assert len(rounds_of("halving-doubling", flat(p))) == 2 * k
    assert sent("halving-doubling", flat(p)) == [Fraction(2 * (p - 1), p)] * p


@given(p=st.integers(3, 40).filter(lambda p: p & (p - 1)))
def test_folding_costs_two_rounds_with_the_whole_tensor(p):
    k = int(log2(p))
    q = 2**k
    assert len(rounds_of("doubling", flat(p))) == k + 2
    assert sum(sent("doubling", flat(p))) == q * k + 2 * (p - q)
    assert len(rounds_of("halving-doubling", flat(p))) == 2 * k + 2
    assert sum(sent("halving-doubling", flat(p))) == 2 * (q - 1) + 2 * (p - q)


@given(p=st.integers(1, 40))
def test_a_tree_moves_each_tensor_up_once_and_down_once(p):
    levels = ceil(log2(p))
    assert len(rounds_of("tree", flat(p))) == 2 * levels
    assert sum(sent("tree", flat(p))) == 2 * (p - 1)
    assert sent("tree", flat(p))[0] == received("tree", flat(p))[0] == levels


@given(nodes=st.integers(1, 6), lanes=st.integers(1, 6), place=st.sampled_from([grid, dealt]))
def test_hierarchical_sends_one_lane_between_nodes(nodes, lanes, place):
    group = place(nodes, lanes)
    rounds = rounds_of("hierarchical", group)
    assert len(rounds) == 2 * (nodes - 1) + 2 * (lanes - 1)
    node_of = np.array(group.nodes)
    blocks = np.zeros((2, group.size), dtype=np.int64)  # inside, between
    for round_ in rounds:
        crosses = (node_of[round_.src] != node_of[round_.dst]).astype(np.int64)
        np.add.at(blocks, (crosses, round_.src), round_.stop - round_.first)
    assert set(blocks[0]) == {2 * (lanes - 1) * nodes}
    assert set(blocks[1]) == {2 * (nodes - 1)}


@given(nodes=st.lists(st.integers(0, 3), min_size=1, max_size=16))
def test_a_ring_enters_and_leaves_each_node_once(nodes):
    group = placed(*nodes)
    found = len(group.members)
    for round_ in rounds_of("ring", group):
        crosses = np.array(nodes)[round_.src] != np.array(nodes)[round_.dst]
        assert crosses.sum() == (found if found > 1 else 0)


@pytest.mark.parametrize("name", ["direct", "all-gather-direct", "all-to-all"])
def test_in_a_rotation_everybody_sends_and_receives_in_every_round(name):
    for round_ in rounds_of(name, flat(7)):
        assert sorted(round_.src) == sorted(round_.dst) == list(range(7))
