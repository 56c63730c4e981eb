"""A study of more than a thousand rows that is killed again and again ends as if it never was."""

import os
import pty
import select
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

import commsched as cs
from commsched.cli.main import main
from commsched.run.job.launcher import find_mpiexec
from commsched.study import rows
from tests.support.jobs import ROOT

STUDY = """
net = ["resnet50", "bert-base", "vgg16", "gpt2", "resnet101"]
machine = ["p3.16xlarge", "summit", "h100-8x400", "p3dn.24xlarge"]
nodes = [2, 4, 8]
planner = ["ddp-25mb", "horovod-64mb", "per-tensor", "bytescheduler"]
bandwidth = ["10gbit", "25gbit", "100gbit", "200gbit", "400gbit"]
"""
CTRL_C = b"\x03"  # as a terminal's user types it: every process of the command gets it


def lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stopped(words, path, until, how):
    """Run a command on a terminal of its own; stop it once its table has enough rows.

    Returns its status, and what it has said.
    """
    said = b""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(ROOT)
        os.execvp(words[0], words)
    with suppress(OSError):  # nobody has the terminal open any more
        while True:
            if select.select([terminal], [], [], 0.01)[0]:
                said += os.read(terminal, 4096)
            if how is not None and lines(path) > until:
                os.kill(child, how) if how == signal.SIGKILL else os.write(terminal, CTRL_C)
                how = None
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said.decode()


def processes(word):
    """The processes that have a word in their command line."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found += [process.name] * (word.encode() in process.joinpath("cmdline").read_bytes())
    return found


def test_a_study_of_1200_rows_is_killed_and_goes_on(tmp_path):
    study, path, whole = (tmp_path / name for name in ("study.toml", "killed.csv", "whole.csv"))
    study.write_text(STUDY)
    command = [sys.executable, "-m", "commsched", "sweep", str(study), "-o"]
    ranks = [find_mpiexec(), "-n", "3", *command]
    for number, (words, how) in enumerate(
        [
            ([*command, str(path), "--jobs", "2"], signal.SIGKILL),
            ([*command, str(path), "--jobs", "2"], signal.SIGINT),
            ([*command, str(path)], signal.SIGINT),
            ([*command, str(path)], signal.SIGKILL),
            ([*ranks, str(path)], signal.SIGINT),
        ]
    ):
        until = 200 * (number + 1)
        status, said = stopped(words, path, until, how)
        assert status == (130 if how == signal.SIGINT else -signal.SIGKILL), said
        assert (how == signal.SIGINT) == ("of 1200 rows, and can go on" in said)
        assert until <= lines(path) < 1200
        assert not processes(str(study))
    assert stopped([*ranks, str(path)], path, 0, None)[0] == 0
    assert main(["sweep", str(study), "-o", str(whole)]) == 0
    assert sorted(path.read_text().splitlines()) == sorted(whole.read_text().splitlines())
    assert lines(whole) == 1 + 1200


@pytest.mark.parametrize("planner", ["hipress", "greedy", "all-coo"])
def test_a_simulated_row_is_what_plan_and_simulate_say(planner, tmp_path):
    path = tmp_path / "sweep.csv"
    words = ["--net", "lstm", "--machine", "p3.16xlarge", "--nodes", "2", "--planner", planner]
    assert main(["sweep", *words, "--simulate", "-o", str(path)]) == 0
    (found,) = rows.read(path)
    plan = cs.Plan.best("lstm", cs.Machine("p3.16xlarge", nodes=2), planner=planner)
    data = plan.simulate().data
    assert found["step_seconds"] == pytest.approx(data["iteration_median_seconds"], rel=1e-9)
    assert found["exposed_seconds"] == pytest.approx(data["exposed_median_seconds"], rel=1e-9)
    assert found["sent_bytes_per_rank"] == pytest.approx(data["sent_median_bytes"], rel=1e-9)
    assert found["memory_bytes_per_rank"] == data["memory_bytes"]["total"]
