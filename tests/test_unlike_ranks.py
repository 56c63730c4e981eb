"""Ranks that do not belong together: other plans, options, versions, launchers, or two jobs."""

import socket
import sys
from pathlib import Path

import pytest

from commsched.run.job.launcher import family, library
from tests.support.jobs import MAIN, RUN, Job, Single
from tests.test_faults import SECONDS, begun, endless, long_run, written

assert endless  # a fixture


def said(output: str) -> str:
    """The one line that a refusal prints; some MPIs add lines of their own."""
    (line,) = [line for line in output.splitlines() if line.startswith("commsched: ")]
    assert "Traceback" not in output
    return line


def nothing_written(folder: Path) -> bool:
    return all(path.name in ("a.json", "b.json", "m.json.d") for path in folder.iterdir())


@pytest.mark.parametrize("lanes", [2])
def test_two_ranks_with_different_plans_are_refused(tmp_path, lanes):
    first = written(tmp_path / "a.json", lanes=2)
    second = written(tmp_path / "b.json", lanes=lanes, seed=1)
    output = ["-o", str(tmp_path / "m.json")]
    with Job([1, 1], [*RUN, str(first), *output], [*RUN, str(second), *output]) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status == 2
    assert said(ended.output).startswith("commsched: the ranks differ in the plan: rank 1 on host ")
    assert nothing_written(tmp_path)


OLDER = "import commsched; commsched.__version__ = '0.0.1'\n" + MAIN


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (
            [*RUN, "PLAN", "--steps", "7"],
            "--steps: rank 1 on host HERE has 7, 1 of 2 ranks have 10",
        ),
        ([*RUN, "PLAN", "--verify"], "--verify: rank 1 on host HERE has True, 1 of 2 ranks have"),
        ([*RUN[:-1], "calibrate"], "the command: rank 1 on host HERE has calibrate, 1 of 2 ranks"),
        ([sys.executable, "-c", OLDER, "run", "PLAN"], "the version of commsched: rank 1 on host"),
    ],
)
def test_ranks_that_were_started_differently_are_told_in_what(tmp_path, other, difference):
    made = str(written(tmp_path / "a.json", lanes=2))
    output = ["-o", str(tmp_path / "m.json")]
    words = [made if word == "PLAN" else word for word in other]
    with Job([1, 1], [*RUN, made, *output], [*words, *output]) as job:
        ended = job.wait(SECONDS)
        assert job.left() == {}
    assert ended.status == 2
    want = f"commsched: the ranks differ in {difference.replace('HERE', socket.gethostname())}"
    assert said(ended.output).startswith(want)
    assert nothing_written(tmp_path)


@pytest.mark.by_day(0)
def test_a_file_that_one_rank_cannot_read_is_said_once_with_its_rank(tmp_path):
    first = written(tmp_path / "a.json", lanes=2)
    output = ["-o", str(tmp_path / "m.json")]
    with Job([1, 1], [*RUN, str(first), *output], [*RUN, "/nowhere/b.json", *output]) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 2
    want = "commsched: rank 1: /nowhere/b.json: cannot be read: No such file or directory"
    assert said(ended.output) == want
    assert nothing_written(tmp_path)


def test_a_wrong_number_of_ranks_is_told_the_right_one(tmp_path):
    made = written(tmp_path / "a.json", lanes=3)
    with Job(2, [*RUN, str(made), "-o", str(tmp_path / "m.json")]) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 2
    assert said(ended.output) == (
        "commsched: the plan is for 3 ranks, but 2 were started; use 'mpiexec -n 3'"
    )
    assert nothing_written(tmp_path)


def test_the_launcher_of_another_mpi_is_seen(tmp_path):
    made = written(tmp_path / "a.json", lanes=2)
    other, want = (
        ("PMI_RANK", "PMI_SIZE"),
        "the launcher started 2 ranks (PMI_SIZE), but MPI sees 1",
    )
    if family(library()) != "Open MPI":
        other = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
        want = f"the launcher is Open MPI's, but mpi4py loads {family(library())}"
    variables = dict(zip(other, ("0", "2"), strict=True))
    with Single(*RUN, str(made), "-o", str(tmp_path / "m.json"), variables=variables) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 2
    assert want in said(ended.output)
    assert nothing_written(tmp_path)


@pytest.mark.by_day(0)
def test_a_second_run_to_one_file_is_refused_with_the_holder_and_leaves_the_first(endless):
    with Job(3, long_run(endless)) as job:
        job.until(lambda: begun(endless))
        first = job.rank(0)
        with Job(3, long_run(endless)) as other:
            ended = other.wait(SECONDS)
        assert ended.status == 2
        output = endless.with_name("m.json")
        want = f"commsched: rank 0: {output} is in use by another job: process {first} on host "
        assert said(ended.output).startswith(want)
        assert begun(endless)
        assert job.process.poll() is None
