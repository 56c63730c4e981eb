"""A rank that makes the others wait longer than usual is named while the job runs."""

import os
import signal
import sys

import numpy as np
import pytest

from commsched.plan import file as plan_file
from commsched.run.engine.slow_ranks import Report, SlowRanks
from commsched.timeline import file as timeline_file
from tests.support.jobs import MAIN, Job
from tests.support.small_plans import graph, machine, plan
from tests.test_faults import begun

WINDOW, RANKS = 10.0, 3
PATIENT = 0.4  # s of a window in a real run
SOON = (
    "from commsched.run.job.deadlines import Deadlines, use\n"
    f"use(Deadlines(look=0.05, idle=0.02, slow={PATIENT}))\n" + MAIN
)


def judged(shares, pace=1.0, silent=()):
    """What is said, and when, of ranks that wait the given shares of each second; None: stopped."""
    found, slow = [], SlowRanks(RANKS, range(1, RANKS), WINDOW)
    waited, seen = [0.0] * RANKS, [0.0] * RANKS
    for second, each in enumerate(shares):
        for rank, share in enumerate(each):
            if share is not None:
                waited[rank], seen[rank] = waited[rank] + share, seen[rank] + 1
                step = int(second / pace)
                slow.take(rank, Report(waited[rank], seen[rank], step, "b0/exchange"), second)
        found += [(second, one) for one in slow.judge(second)]
    return found


EVEN = (0.1, 0.1, 0.1)
SLOW = (0.5, 0.1, 0.5)  # rank 1 has less to wait for


def test_a_rank_is_named_once_after_a_window_of_long_waits():
    ((when, one),) = judged([EVEN] * 60 + [SLOW] * 100)
    assert 60 + 3 / 4 * WINDOW < when <= 60 + WINDOW
    assert (one.rank, one.silent) == (1, False)
    assert one.usual < 0.05 < 0.3 < one.share
    assert str(one).startswith("rank 1 makes the others wait for b0/exchange in step 6")
    assert judged([EVEN] * 60 + [SLOW] * 30 + [EVEN] * 30 + [SLOW] * 30)[1][0] > 120


def test_a_stopped_rank_needs_no_usual_share_and_does_not_answer():
    ((when, one),) = judged([EVEN] * 12 + [(1.0, None, 1.0)] * 100)
    assert when <= 12 + WINDOW
    assert (one.rank, one.usual, one.silent) == (1, None, True)
    assert one.share > 0.75
    assert [one.silent for _, one in judged([(1.0, None, 1.0)] * 30)] == [True]  # from the start


@pytest.mark.parametrize(
    "shares",
    [
        [EVEN] * 60 + [(0.9, 0.9, 0.9)] * 60,  # the network is slow
        [SLOW] * 120,  # as it always was
        [EVEN] * 60 + [(0.1, 0.1, 0.9)] * 60,  # one rank alone waits
        [(0.3, 0.1, 0.3)] * 60 + [SLOW] * 60,  # twice its usual share
        [EVEN] * 60 + [(0.3, 0.1, 0.3)] * 60,  # a share that is small after all
        ([EVEN] * 60 + [(1.0, 0.0, 1.0)] * 5) * 3,  # a hiccup
        [EVEN] * 60 + [(1.0, None, 1.0)] * 5 + [EVEN] * 20,
        [(None, 0.5, 0.5)] * 100,  # it has not begun
    ],
)
def test_nobody_is_named_without_a_reason(shares):
    assert judged(shares) == []


@pytest.mark.parametrize("jitter", [0.02, 0.3])
def test_nobody_is_named_in_half_an_hour_of_steps_that_vary(jitter):
    """Steps of 1 s; ranks wait for the one that draws the longest."""
    drawn = np.random.default_rng(0).lognormal(0.0, jitter, (1800, RANKS))
    longest = drawn.max(axis=1, keepdims=True)
    assert judged(((longest - drawn) / longest).tolist()) == []


def test_waits_of_long_steps_are_not_taken_for_hiccups():
    """Steps of 8 s; from the 20th on rank 1 computes through each, and the others for a half."""
    early = ([(0.0, 0.0, 0.0)] * 7 + [(1.0, 1.0, 1.0)]) * 20
    late = ([(0.0, 0.0, 0.0)] * 4 + [(1.0, 0.0, 1.0)] * 4) * 20
    ((when, one),) = judged(early + late, pace=8.0)
    assert (one.rank, when > len(early)) == (1, True)
    assert one.window > 8 * 4


@pytest.mark.by_day(0)
def test_a_stopped_rank_is_named_while_the_run_goes_on_and_in_its_timeline(tmp_path):
    made = plan(graph([500] * 4, seconds=1e-3), machine(1, RANKS), ["ring+fp16", "ring+dense"])
    path, measured = tmp_path / "plan.json", tmp_path / "m.json"
    plan_file.write(path, made)
    words = ("run", str(path), "-o", str(measured), "--steps", "60")
    with Job(RANKS, [sys.executable, "-c", SOON, *words]) as job:
        job.until(lambda: begun(path, RANKS))
        os.kill(stopped := job.rank(1), signal.SIGSTOP)
        job.until(lambda: "commsched: rank 1 makes the others wait for b" in job.output)
        os.kill(stopped, signal.SIGCONT)
        done = job.wait(60)
    assert done.status == 0, done.output
    found = timeline_file.read(measured).warnings
    assert any(
        one.startswith("rank 1 makes the others wait") and one.endswith("it does not answer")
        for one in found
    )
    assert all(f"commsched: {one}" in done.output for one in found)
