"""No blocking call waits for ever: ranks stop, die or stay away where all of them meet."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commsched.plan import file as plan_file
from tests.support.jobs import IMPATIENT, Ended, Job
from tests.support.small_plans import graph, machine, plan

SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores

# Run `commsched`, but rank 1 gets a signal, which the last argument tells, where a stage begins
# that the argument before names, or at one of three other places.
STRUCK = (
    IMPATIENT
    + """
import os
import sys
from commsched.cli.main import main
from commsched.run.job.launcher import environment_rank
from commsched.run.engine.measurement import Measurement
from commsched.run.job.watchdog import Watchdog

place, number = sys.argv.pop(-2), int(sys.argv.pop())
stage, finish = Watchdog.stage, Measurement.finish

def strike(here):
    if here.startswith(place) and environment_rank() == 1:
        os.kill(os.getpid(), number)

def staged(self, name):
    stage(self, name)
    strike(name)

def finished(self, *arguments, **named):
    strike("finish")
    return finish(self, *arguments, **named)

Watchdog.stage, Measurement.finish = staged, finished
strike("begin")
status = main(sys.argv[1:])
strike("over")
raise SystemExit(status)
"""
)


def ended(place: str, number: int, *words: str) -> Ended:
    """How a job of three ranks ends whose rank 1 is struck."""
    line = [sys.executable, "-c", STRUCK, *words, place, str(number)]
    with Job(3, line) as job:
        done = job.wait(SECONDS)
        assert job.left() == {}
    assert done.status != 0
    assert "Traceback" not in done.output
    return done


def calibration(output: Path) -> list[str]:
    return ["calibrate", "-o", str(output), "--seconds", "0.5", "--timeout", "2"]


def running(folder: Path) -> list[str]:
    made = plan(graph([500] * 4, seconds=1e-3), machine(1, 3), ["ring+fp16", "ring+dense"])
    plan_file.write(folder / "plan.json", made)
    words = [str(folder / "plan.json"), "-o", str(folder / "m.json")]
    return ["run", *words, "--steps", "3", "--timeout", "1"]


def assert_rank_1_is_missed(done: Ended, what: str, option: str) -> None:
    """Ranks 0 and 2 say once that they get nowhere, one of them that rank 1 does not answer."""
    lines = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
    for rank in (0, 2):
        said = [line for line in lines if line.startswith(f"commsched: rank {rank}: ")]
        assert len(said) == 1, done.output
        assert said[0].startswith(f"commsched: rank {rank}: {what}"), done.output
    assert any(f": no progress for {option}" in line for line in lines), done.output
    assert lines[-1] == "commsched: rank 1 does not answer", done.output
    assert len(lines) == 3, done.output


@pytest.mark.by_day(0)
def test_a_rank_that_is_stopped_during_calibrate_is_named(tmp_path):
    done = ended("codecs", signal.SIGSTOP, *calibration(tmp_path / "m.json"))
    assert_rank_1_is_missed(done, "calibrate: ", "2.5 s (--timeout and --seconds)")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.by_day(0)
def test_a_rank_that_never_comes_keeps_nobody(tmp_path):
    done = ended("begin", signal.SIGSTOP, *running(tmp_path))
    said = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
    text = "commsched: rank {}: run: meeting all ranks: no progress for 2 s (--timeout)"
    assert sorted(said) == [text.format(0), text.format(2)]


@pytest.mark.by_day(0)
@pytest.mark.parametrize("stage", ["making communicators"])
def test_a_rank_that_is_stopped_before_the_start_of_a_run_is_named(tmp_path, stage):
    done = ended(stage, signal.SIGSTOP, *running(tmp_path))
    assert_rank_1_is_missed(done, f"run: {stage}: ", "1 s (--timeout)")


@pytest.mark.by_day(0)
def test_a_rank_that_is_stopped_after_its_last_step_is_named(tmp_path):
    done = ended("finish", signal.SIGSTOP, *running(tmp_path))
    assert_rank_1_is_missed(done, "run: bringing the spans together: ", "2 s (--timeout)")
    assert len(list(tmp_path.glob("m.json.*"))) == 3
    assert not (tmp_path / "m.json").exists()


@pytest.mark.by_day(0)
def test_a_rank_that_is_stopped_when_all_is_done_keeps_nobody(tmp_path):
    done = ended("over", signal.SIGSTOP, *running(tmp_path))
    assert "run: waiting for all ranks to exit: no progress for 2 s (--timeout)" in done.output
    assert (tmp_path / "m.json").exists()


@pytest.mark.by_day(0)
def test_a_rank_that_is_stopped_during_a_benchmark_is_named():
    done = ended("all-reduces of", signal.SIGSTOP, "bench", "all-reduce", "--timeout", "1")
    assert_rank_1_is_missed(done, "bench: all-reduces of 1.024 kB: ", "1 s (--timeout)")


def test_a_deadline_that_is_over_at_once_is_refused(tmp_path):
    for words in (["calibrate", "-o", str(tmp_path / "m.json")], ["bench", "overlap"]):
        with Job(2, [sys.executable, "-m", "commsched", *words, "--timeout", "0"]) as job:
            done = job.wait(SECONDS)
        assert done.status == 2, done.output
        (said,) = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
        assert said.endswith(": --timeout must be finite and more than 0 s; got 0")


# --- Programs that use the watchdog, and an Exchanger. ---

BEGIN = (
    IMPATIENT
    + """
import os, signal, sys, threading, time
from mpi4py import MPI
from commsched import Exchanger
from commsched.plan import file as plan_file
from commsched.run import exchanger
from commsched.run.job.watchdog import ASK, Watchdog, watchdog
from tests.support.small_plans import graph, machine, plan
comm = MPI.COMM_WORLD
"""
)


def program(code: str, ranks: int = 3) -> Ended:
    with Job(ranks, [sys.executable, "-c", BEGIN + code]) as job:
        done = job.wait(SECONDS)
        assert job.left() == {}
    assert "Traceback" not in done.output, done.output
    return done


def said_by(done: Ended) -> list[str]:
    return sorted(line for line in done.output.splitlines() if line.startswith("commsched: "))


@pytest.mark.by_day(0)
def test_ranks_that_wait_in_a_circle_are_all_named():
    done = program(
        "with watchdog(comm, 'test', 1.0) as dog:\n"
        "    dog.stage(f'waiting for rank {(comm.rank + 1) % 3}')\n"
        "    comm.Recv(bytearray(1), (comm.rank + 1) % 3)\n"
    )
    assert done.status != 0
    text = "commsched: rank {}: test: waiting for rank {}: no progress for 1 s (--timeout)"
    assert said_by(done) == [text.format(0, 1), text.format(1, 2), text.format(2, 0)]


def test_a_rank_that_works_too_long_without_a_beat_ends_the_job():
    done = program(
        "with watchdog(comm, 'test', 1.0) as dog:\n"
        "    dog.stage('working' if comm.rank == 1 else 'waiting')\n"
        "    time.sleep(600) if comm.rank == 1 else comm.Barrier()\n"
    )
    assert done.status != 0
    assert "commsched: rank 1: test: working: no progress for 1 s (--timeout)" in said_by(done)
    assert "does not answer" not in done.output


@pytest.mark.by_day(0)
def test_a_rank_that_gets_on_is_waited_for_and_all_may_take_longer_than_the_timeout():
    done = program(
        "with watchdog(comm, 'test', 0.5) as dog:\n"
        "    dog.stage('working' if comm.rank == 1 else 'waiting')\n"
        "    for _ in range(12 * (comm.rank == 1)):\n"
        "        dog.beat()\n"
        "        time.sleep(0.1)\n"
        "    comm.Barrier()\n"
        "    for number in range(12):\n"
        "        dog.stage('counting') if number % 2 else dog.beat()\n"
        "        time.sleep(0.1)\n"
        "        comm.Barrier()\n"
        "assert not [t for t in threading.enumerate() if t.name == 'watchdog']\n",
        ranks=2,
    )
    assert done.status == 0, done.output
    assert said_by(done) == []


PAUSED = """
send = Watchdog._send

def sent(self, control, peer, *numbers):
    send(self, control, peer, *numbers)
    if numbers[0] == ASK:
        Watchdog._send = send
        os.kill(os.getpid(), signal.SIGSTOP)

Watchdog._send = sent
with watchdog(comm, 'test', 0.5) as dog:
    dog.stage('working' if comm.rank == 1 else 'waiting')
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        for _ in range(12):
            dog.beat()
            time.sleep(0.1)
    comm.Barrier()
"""


def is_stopped(process: int) -> bool:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_ranks_that_were_paused_after_a_question_may_still_answer():
    with Job(2, [sys.executable, "-c", BEGIN + PAUSED]) as job:
        job.until(lambda: {0, 1} <= set(job.processes().values()))
        ranks = [job.rank(0), job.rank(1)]
        job.until(lambda: all(map(is_stopped, ranks)))
        time.sleep(1.0)
        for rank in ranks:  # the one that asked is the first to go on
            os.kill(rank, signal.SIGCONT)
            time.sleep(0.2)
        done = job.wait(SECONDS)
    assert done.status == 0, done.output
    assert said_by(done) == []


@pytest.mark.by_day(0)
def test_a_rank_that_is_stopped_while_an_exchanger_is_set_up_is_named():
    done = program(
        "made = plan(graph([500] * 4), machine(1, 3), ['ring+dense'])\n"
        "class Stopped(exchanger.Engine):\n"
        "    def __init__(self, *arguments, **named):\n"
        "        if comm.rank == 1:\n"
        "            os.kill(os.getpid(), signal.SIGSTOP)\n"
        "        super().__init__(*arguments, **named)\n"
        "exchanger.Engine = Stopped\n"
        "with Exchanger(made, comm, timeout=1.0):\n"
        "    pass\n"
    )
    assert done.status != 0
    assert_rank_1_is_missed(done, "Exchanger: making communicators: ", "1 s (timeout)")


@pytest.mark.by_day(0)
def test_no_watchdog_runs_beside_the_engine(tmp_path):
    code = (
        "from commsched.run import session\n"
        "from commsched.cli.main import main\n"
        "class Watched(session.Emulated):\n"
        "    def gradient(self, step, launch, out):\n"
        "        assert 'watchdog' not in {t.name for t in threading.enumerate()}\n"
        "        super().gradient(step, launch, out)\n"
        "session.Emulated = Watched\n"
        f"raise SystemExit(main({running(tmp_path)!r}))\n"
    )
    assert program(code).status == 0


STUCK = """
import time
from commsched.run.job import ending
from commsched.run.job.deadlines import Deadlines, use

class Comm:
    def Abort(self, status):
        time.sleep(60)

use(Deadlines(hard=0.2))
ending.abort(Comm())
"""


def test_a_rank_ends_even_where_mpi_cannot_end_the_job():
    done = subprocess.run([sys.executable, "-c", STUCK], timeout=30, check=False)
    assert done.returncode == 1
