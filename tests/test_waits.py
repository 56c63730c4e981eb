"""A stream wakes up once for all that it waits for; values are checked without warnings."""

import threading
import time

import numpy as np
import pytest

from commsched.kernels.finite_check import FEW, finite
from commsched.program.model import After, Kind, Op
from commsched.run.engine import wait_for_messages
from commsched.run.engine.board import Board, Stopped, WaitStatus
from commsched.run.engine.wait_for_messages import LONGEST, NAP, Pacer

OPS = [Op(kind=Kind.APPLY, name=f"a{k}", stream="compute", after=(After(f"x{k}"),)) for k in (0, 1)]
LIMIT = 30.0  # s


class Counted(Board):
    """Counts how often a stream begins to sleep."""

    slept = 0

    def sleep(self, *args, **named):
        self.slept += 1
        super().sleep(*args, **named)


def waiting(board, wait):
    """Begin to wait in a thread, and return the thread once it sleeps."""
    thread = threading.Thread(target=wait)
    thread.start()
    end = time.monotonic() + LIMIT
    while not board.slept and time.monotonic() < end:
        time.sleep(1e-3)
    with board.lock:  # given back once it sleeps
        return thread


@pytest.mark.parametrize("wakes", [True, False])
@pytest.mark.parametrize(
    "wait",
    [
        lambda board: board.wait_for_all("compute", 3, OPS),
        lambda board: board.until_done((3, f"x{k}") for k in (0, 1)),
    ],
)
def test_who_waits_for_several_operations_sleeps_once(wait, wakes):
    board = Counted()
    thread = waiting(board, lambda: wait(board))
    board.mark(3, "x1", 1.0, wakes=wakes)
    board.deliver(busy=False)
    assert thread.is_alive()
    board.mark(3, "x0", 2.0, wakes=wakes)
    board.deliver(busy=False)
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert board.slept == 1


def test_a_failure_ends_the_wait_for_several_operations():
    board, ended = Counted(), []

    def wait():
        with pytest.raises(Stopped):
            board.wait_for_all("compute", 3, OPS)
        ended.append(True)

    thread = waiting(board, wait)
    assert board.status["compute"].what == "waits for x0"
    board.fail(ValueError())
    thread.join(LIMIT)
    assert ended == [True]


@pytest.mark.parametrize("numel", [1, 7, FEW, FEW + 1])
@pytest.mark.parametrize("large", [0.0, 3e38])
def test_values_whose_sum_or_squares_overflow_are_finite_and_nan_and_infinity_are_not(numel, large):
    values = np.full(numel, large, np.float32)
    assert finite(values)
    for wrong in (np.nan, np.inf, -np.inf):
        values[numel // 2] = wrong
        assert not finite(values)


def test_a_rank_computes_unless_it_waits_or_only_sleeps():
    board = Board()
    assert board.computes  # a caller does, as far as anyone knows
    board.status["compute"] = WaitStatus(0, "f", "runs", 0.0, False)
    assert board.computes
    board.status["compute"] = WaitStatus(0, "f", "waits for b0/decode", 0.0, True)
    assert not board.computes
    board.idle("compute")
    board.occupies_cores = False
    assert not board.computes


@pytest.mark.parametrize("waited", [0.0, 1e-5, 1e-2, 10.0])
def test_polls_beside_computing_never_yield_the_core_and_sleep_no_longer_than_the_longest(
    monkeypatch, waited
):
    slept, yielded, clock = [], [], [0.0]
    monkeypatch.setattr(wait_for_messages, "now", lambda: clock[0])
    monkeypatch.setattr(wait_for_messages.os, "sched_yield", lambda: yielded.append(1))
    monkeypatch.setattr(wait_for_messages.time, "sleep", slept.append)
    pacer = Pacer()
    clock[0] = waited
    pacer.rest(beside_computing=True)
    assert not yielded
    assert NAP <= slept[0] <= LONGEST
    pacer.rest()
    assert len(yielded) + len(slept) == 2
    assert bool(yielded) is (waited < wait_for_messages.SPIN)
    Pacer(crowded=True).rest(beside_computing=True)  # where ranks share cores
    assert slept[-1] == LONGEST
