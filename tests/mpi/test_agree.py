"""What ranks agree on before the first byte moves."""

import socket

import pytest

from commsched.errors import Agreed, CommschedError
from commsched.run.job import agree, clock
from tests.support.ranks import WORLD
from tests.support.small_plans import machine

pytestmark = pytest.mark.groups(1, 2, 3, 4, 6, 8)


def test_texts_of_any_length_and_alphabet_reach_every_rank():
    texts = ["", "\u00e4\u4e2d\U0001f600", "x" * 5000]
    for shift in range(3):
        found = agree.gather_text(texts[(WORLD.rank + shift) % 3], WORLD)
        assert found == [texts[(rank + shift) % 3] for rank in range(WORLD.size)]


def test_an_error_on_one_rank_is_raised_on_all():
    last = WORLD.size - 1

    def work():
        if WORLD.rank == last:
            raise CommschedError("no such file")
        return WORLD.rank

    with pytest.raises(CommschedError) as error:
        agree.on_all_ranks(work, WORLD)
    assert str(error.value) == ("no such file" if last == 0 else f"rank {last}: no such file")
    assert agree.on_all_ranks(lambda: WORLD.rank, WORLD) == WORLD.rank


def test_an_error_on_all_ranks_is_said_once():
    def work():
        raise CommschedError("no such file")

    with pytest.raises(CommschedError, match=r"^no such file$"):
        agree.on_all_ranks(work, WORLD)


def test_the_rank_that_differs_is_named_with_its_host_and_value():
    last = WORLD.size - 1
    start = {"--steps": "20" if WORLD.rank == last else "10", "--verify": "True"}
    if WORLD.size == 1:
        agree.check_start("run", start, WORLD)
        return
    with pytest.raises(Agreed) as error:
        agree.check_start("run", start, WORLD)
    assert str(error.value).startswith(
        f"the ranks differ in --steps: rank {last} on host {socket.gethostname()} has 20,"
        f" {last} of {WORLD.size} ranks have 10; "
    )


def test_numbers_reach_every_rank():
    assert agree.gather_numbers(WORLD.rank + 0.5, WORLD) == [
        rank + 0.5 for rank in range(WORLD.size)
    ]
    assert agree.largest(float(-WORLD.rank), WORLD) == 0.0


def test_a_clock_is_its_own_rank_zero_and_bounds_its_error():
    aligned = clock.align(WORLD)
    if WORLD.rank == 0:
        assert aligned == (0.0, 0.0)
    assert 0.0 <= aligned.uncertainty < 10.0
    # Ranks of one host share a clock: the offset that was measured is the error.
    hosts, _ = agree.placement(machine(1, WORLD.size), WORLD)
    if len(set(hosts)) == 1:
        assert abs(aligned.offset) <= aligned.uncertainty + 1e-9


def test_ranks_that_are_placed_otherwise_are_named():
    four = machine(2, 2)
    assert agree.differences(four, ["a", "a", "b", "b"]) == []
    assert agree.differences(four, ["x", "x", "y", "y"]) == []
    (count, place) = agree.differences(four, ["a", "a", "a", "a"])
    assert count == "machine 'test' has 2 nodes, but the ranks run on 1 hosts (a)"
    assert place == "rank 2 of node 1 runs on host a, with node 0"
    (place,) = agree.differences(four, ["a", "b", "a", "b"])
    assert place.startswith("rank 1 of node 0 runs on host b, away from a")
    (count, *_) = agree.differences(machine(1, 6), list("abcdef"))
    assert count.endswith("run on 6 hosts (a, b, c, d, ...)")
