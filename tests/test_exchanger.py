"""How a training loop's Exchanger ends where something goes wrong: every rank, with a reason."""

import sys

import pytest

from commsched.timeline.parts import read_parts
from tests.support import sampling
from tests.support.jobs import IMPATIENT, Ended, Job

# Deadlines are far beyond the test's own limit.
BEGIN = """
import sys, time
from commsched.run.exchanger import Exchanger
from tests.support.ranks import WORLD
from tests.support.tiny_exchange import BACKWARD, gradients, make_plan, one_step
timeline = sys.argv[1] if len(sys.argv) > 1 else None
"""
LIMIT = 60  # s


def run(ranks: int, program: str, *arguments: str) -> Ended:
    with Job(ranks, [sys.executable, "-c", BEGIN + program, *arguments]) as job:
        return job.wait(LIMIT)


@pytest.mark.by_day(0)
def test_an_exception_on_one_rank_ends_all_with_its_traceback(tmp_path):
    program = """
with Exchanger(make_plan(), WORLD, timeline=timeline, timeout=1000) as exchanger:
    one_step(exchanger, 0, WORLD.rank)
    one_step(exchanger, 1, WORLD.rank)
    if WORLD.rank == 1:
        1 / 0
    one_step(exchanger, 2, WORLD.rank)
"""
    path = tmp_path / "measured.json"
    done = run(3, program, str(path))
    assert done.status != 0
    assert "commsched: rank 1: Traceback" in done.output
    assert "ZeroDivisionError" in done.output
    left = read_parts(path, ended=False)  # what was measured is on disk
    assert {(s.rank, s.step) for s in left} >= {(1, 0), (1, 1)}


def test_what_a_user_can_fix_is_one_sentence():
    program = """
with Exchanger(make_plan(), WORLD, timeout=1000) as exchanger:
    one_step(exchanger, 0, WORLD.rank)
    for name, gradient in gradients(1, 0).items():  # rank 1 does nothing wrong
        exchanger.ready("nothing" if WORLD.rank == 0 else name, gradient)
    exchanger.wait("a")
"""
    done = run(2, program)
    assert done.status != 0
    assert "commsched: rank 0: no tensor named 'nothing' in net 'tiny'; known: " in done.output


NAMED_BY = ["all-gather+topk", "ring+fp16", "node-union", "native+dense"]


@pytest.mark.by_day(0)
@pytest.mark.parametrize("method", sampling.some(NAMED_BY, 2))
def test_nan_in_a_gradient_is_named_before_a_codec_may_drop_it(method):
    program = f"""
with Exchanger(make_plan(methods=["{method}"]), WORLD, timeout=1000) as exchanger:
    one_step(exchanger, 0, WORLD.rank)
    mine = gradients(1, WORLD.rank)
    mine["c"].flat[11] = float("nan") if WORLD.rank == 1 else 0
    for name in BACKWARD:
        exchanger.ready(name, mine[name])
    exchanger.wait("c")
"""
    done = run(2, program)
    assert done.status != 0
    want = (
        "commsched: rank 1: step 1: the gradient of tensor 'c' has nan at element 11; only finite"
    )
    assert want in done.output
    assert "Traceback" not in done.output


@pytest.mark.by_day(0)
def test_a_rank_that_hands_over_nothing_is_told_by_the_others():
    program = """
with Exchanger(make_plan(), WORLD, timeout=1) as exchanger:
    one_step(exchanger, 0, WORLD.rank)
    if WORLD.rank == 2:
        time.sleep(1000)
    one_step(exchanger, 1, WORLD.rank)
"""
    done = run(3, program)
    assert done.status != 0
    assert "no progress for 1 s (timeout)" in done.output
    assert "rank 0, compute: step 1: tensor 'e' waits for b0/decode" in done.output
    assert "from rank 2" in done.output
    assert "rank 2: has nothing to do" in done.output


@pytest.mark.parametrize("handed", sampling.some([2, 0], 1))
def test_ranks_that_leave_after_different_steps_are_told(handed):
    program = f"""
with Exchanger(make_plan(), WORLD, timeout=1000) as exchanger:
    for step in range(3 if WORLD.rank == 0 else 1):
        mine = gradients(step, WORLD.rank)
        for name in BACKWARD if step < 1 else BACKWARD[:{handed}]:
            exchanger.ready(name, mine[name])
        if step == 1:
            break
        for name in exchanger.names:
            exchanger.wait(name)
"""
    done = run(2, program)
    if handed == 0:
        assert done.status == 0, done.output  # nobody had begun another step
    else:
        assert done.status != 0
        said = (
            "left the with block after different numbers of steps: rank 1 after 1, rank 0 after 2"
        )
        assert said in done.output


@pytest.mark.by_day(0)
def test_a_rank_that_leaves_while_another_waits_does_not_hang():
    program = """
with Exchanger(make_plan(), WORLD, timeout=1) as exchanger:
    one_step(exchanger, 0, WORLD.rank)
    if WORLD.rank == 0:
        one_step(exchanger, 1, WORLD.rank)
"""
    done = run(2, program)
    assert done.status != 0
    assert "rank 1, compute: step 0: end waits for all ranks to leave" in done.output
    assert "rank 0, compute: step 1: tensor 'e' waits for b0/decode" in done.output


def test_an_exchange_that_gets_on_may_take_longer_than_the_timeout():
    program = (
        IMPATIENT
        + """
from commsched.run.engine import communication_thread as communication

class Slow:
    "An exchange that moves something every 0.1 s, for 1 s; that of the first bucket."
    def __init__(self, exchange):
        self.exchange, self.begun = exchange, time.time()
        self.moves, self.sent, self.coded = 0, 0, 0.0
    def progress(self):
        late = time.time() - self.begun
        self.moves = int(late / 0.1)
        return late > 1 and self.exchange.progress()
    def waiting(self):
        return []

begin, communication.prepared = communication.begin, lambda *arguments: None
def slow(*arguments):
    communication.begin = begin
    return Slow(begin(*arguments))
communication.begin = slow
with Exchanger(make_plan(), WORLD, timeout=0.5) as exchanger:
    one_step(exchanger, 0, 0)
"""
    )
    done = run(1, program)
    assert done.status == 0, done.output


@pytest.mark.by_day(0)
def test_a_job_that_was_stopped_as_a_whole_goes_on():
    """Each rank waits for the others beyond the timeout, but was itself stopped meanwhile."""
    program = (
        IMPATIENT
        + """
import os, subprocess
ranks = WORLD.allgather(os.getpid())
with Exchanger(make_plan(), WORLD, timeout=1) as exchanger:
    one_step(exchanger, 0, WORLD.rank)
    if WORLD.rank == 1:
        first, second = ranks
        stop = f"kill -STOP {first} {second}; sleep 1.5; kill -CONT {first}"
        subprocess.Popen(["sh", "-c", f"{stop}; sleep 0.3; kill -CONT {second}"])
        time.sleep(0.5)
    one_step(exchanger, 1, WORLD.rank)
"""
    )
    done = run(2, program)
    assert done.status == 0, done.output
