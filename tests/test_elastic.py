"""A supervisor that restarts ranks from the last checkpoint when one is lost, or gives up."""

import os
import re
import shlex
import signal

import pytest

from commsched.run.job.elastic import NOTES, kept_step
from tests.support.jobs import Ended
from tests.support.supervised import Supervised, counting

SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores


def ended(folder, how: str, *options: str) -> Ended:
    with counting(folder, how, *options) as job:
        done = job.wait(SECONDS)
        assert job.left() == {}
    assert "Traceback" not in done.output
    assert not (folder / NOTES).exists()
    return done


def said(done: Ended) -> list[str]:
    """What the supervisor said, without process and host."""
    lines = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
    return [re.sub(r"\(process \d+ on \S+\)", "(P)", line)[11:] for line in lines]


@pytest.mark.by_day(0)
def test_a_job_that_gets_on_is_restarted_as_often_as_it_loses_a_rank(tmp_path):
    done = ended(tmp_path, "progress", "--restarts", "1")
    assert done.status == 0, done.output
    why = "rank 1 (P) was killed by SIGKILL; 3 ranks go on from step"
    assert said(done) == [f"{why} {step}, the last checkpoint" for step in (1, 2)]
    assert done.output.rpartition("go on from step 2")[2].count("begins at 2") == 3


@pytest.mark.by_day(0)
def test_a_job_that_does_not_get_on_is_given_up(tmp_path):
    done = ended(tmp_path, "vain", "--restarts", "1")
    assert done.status == 2
    why = "rank 1 (P) was killed by SIGKILL;"
    assert said(done) == [
        f"{why} 3 ranks go on from the start: there is no checkpoint yet",
        f"{why} no new checkpoint after 1 restarts: gave up",
    ]


def test_what_all_ranks_refuse_is_not_tried_again(tmp_path):
    done = ended(tmp_path, "refuse")
    assert done.status == 2
    assert said(done) == []
    assert done.output.count("begins at 0") == 3


def test_the_step_is_that_of_the_last_manifest_that_can_be_read(tmp_path):
    assert kept_step(tmp_path) is None
    (tmp_path / "step8").mkdir()
    (tmp_path / "step8" / "manifest.json").write_text('{"step": 8, "files": []}')
    (tmp_path / "manifest.json").write_text('{"step": 1')
    assert kept_step(tmp_path) == 8
    (tmp_path / "manifest.json").write_text('{"step": 12}')
    assert kept_step(tmp_path) == 12


@pytest.mark.by_day(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_supervisor_that_is_ended_takes_its_ranks_along(tmp_path, number):
    words = ("-n", "2", "--checkpoint", str(tmp_path), "--", "sleep", "1000")
    with Supervised("elastic", *words) as job:
        job.until(lambda: list(job.processes().values()).count(1) == 2)  # with its guard
        os.kill(job.process.pid, number)
        job.wait(SECONDS)
        assert job.left() == {}


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("train --net mlp --elastic 2", "--elastic needs --checkpoint, the folder to go on from"),
        ("train --net mlp --elastic 0 --checkpoint C", "ranks must be at least 1, got 0"),
        ("elastic -n 2 --checkpoint C", "give the command of a rank after --"),
        ("elastic -n 2 --checkpoint C --restarts -1 x", "--restarts must be at least 0, got -1"),
        ("elastic -n 2 --checkpoint C --mpiexec '\"' x", "--mpiexec '\"': no closing quotation"),
        ("elastic -n 1 --checkpoint C /nowhere", "/nowhere: cannot be run: No such file"),
    ],
)
def test_what_cannot_be_supervised_is_one_sentence(words, sentence, tmp_path):
    line = [str(tmp_path) if word == "C" else word for word in shlex.split(words)]
    with Supervised(*line) as job:
        done = job.wait(SECONDS)
    assert done.status in (2, 127), done.output
    assert [sentence in line for line in done.output.splitlines() if "commsched" in line] == [True]
