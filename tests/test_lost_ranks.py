"""Ranks that fail alone, before MPI begins or later, are named, and nobody waits for them."""

import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from commsched.run.job import roll_call
from tests.support.jobs import MAIN, RUN, Ended, Job
from tests.test_faults import begun, endless, long_run

SHOWN = (endless,)  # fixtures
SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores
HERE = f"on host {socket.gethostname()}"
SHORT_ROLL_CALL = """
from commsched.run.job.deadlines import Deadlines, use
use(Deadlines(arrival=0.2, grace=0.5))
"""
MISSING = "import sys\nsys.modules[{!r}] = None\n"  # of a package that is not installed


def one_other(made: Path, *other: str) -> Ended:
    """How a job ends whose rank 2 runs another command."""
    words = ["run", str(made), "-o", str(made.with_name("m.json"))]
    with Job([2, 1], [*RUN[:-1], *words], [*other, *words]) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status == 2, ended.output
    return ended


def without(package: str) -> list[str]:
    return [sys.executable, "-c", MISSING.format(package) + MAIN]


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        ([*RUN[:-1], "walk"], f"rank 2 {HERE}: no command 'walk'"),
        (without("mpi4py"), f"rank 2 {HERE}: mpi4py is not installed; pip install"),
        (without("numpy"), f"rank 2 {HERE}: numpy is not installed; pip install"),
        (["false"], f"rank 2 {HERE} ended before MPI began"),
        (["true"], f"rank 2 {HERE} ended before MPI began"),
        ([sys.executable, "-m", "nothing"], f"rank 2 {HERE} ended before MPI began"),
    ],
    ids=["option", "mpi4py", "numpy", "false", "true", "module"],
)
def test_a_rank_that_fails_before_mpi_is_named_and_ends_the_job(endless, other, sentence):
    ended = one_other(endless, *other)
    (said,) = [line for line in ended.output.splitlines() if line.startswith("commsched: ")]
    assert said.startswith(f"commsched: {sentence}")
    assert "Traceback" not in ended.output


@pytest.mark.by_day(0)
@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_runs_something_else_is_missed_at_the_roll_call(endless, lost):
    words = [sys.executable, "-c", SHORT_ROLL_CALL + MAIN, *long_run(endless)[len(RUN) - 1 :]]
    commands = [words, ["sleep", "1000"]]
    with Job([1, 1], *(commands if lost else commands[::-1])) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    want = f"commsched: rank {1 - lost} {HERE}: rank {lost} on this host has not started commsched"
    assert ended.status == 2
    assert ended.output.startswith(want)


@pytest.mark.by_day(0)
def test_a_rank_that_comes_late_is_waited_for_as_long_as_this_one_took(tmp_path, endless):
    words = ["run", str(endless), "--steps", "2", "-o", str(tmp_path / "short.json")]
    late = "import time; time.sleep({})\n" + SHORT_ROLL_CALL + MAIN
    command = [sys.executable, "-c", late.format(0.8), *words]
    later = [sys.executable, "-c", late.format(2.0), *words]
    with Job([2, 1], command, later) as job:
        assert job.wait(SECONDS).status == 0, job.output


@pytest.mark.by_day(1)
@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSEGV])
def test_a_rank_that_the_system_ends_is_named_with_its_host(endless, what):
    with Job(3, long_run(endless)) as job:
        job.until(lambda: begun(endless))
        struck = job.rank(1)
        os.kill(struck, what)
        ended = job.wait(SECONDS)
        assert job.left() == {}
    said = [line for line in ended.output.splitlines() if line.startswith("commsched: ")]
    assert said == [f"commsched: rank 1 {HERE} (process {struck}) was killed by {what.name}"]


def test_no_rank_outlives_the_launcher_that_started_it(endless):
    with Job(3, long_run(endless)) as job:
        job.until(lambda: begun(endless))
        (proxy,) = {int(Path(f"/proc/{job.rank(r)}/stat").read_text().split()[3]) for r in range(3)}
        os.kill(proxy, signal.SIGKILL)
        assert job.left() == {}
        assert job.wait(SECONDS).status != 0


def test_a_roll_call_of_a_millisecond_tells_its_limit():
    assert "within 1 ms after rank 0" in roll_call._missing([1], 0, 1e-3)
