"""Where a command's words and files go: full disks, closed streams, files that are inputs."""

import os
import subprocess
import sys

import pytest

from commsched.cli.main import main
from tests.support.jobs import ROOT

PLAN = "plan lstm --machine localhost --lanes 2 --time-limit 0 -o"
SHELL = {**os.environ, "COMMSCHED": f"{sys.executable} -m commsched"}


@pytest.fixture
def plan(tmp_path):
    assert main([*PLAN.split(), str(tmp_path / "plan.json")]) == 0
    return tmp_path / "plan.json"


def shell(line: str, *words: object) -> "subprocess.CompletedProcess[str]":
    """Run a line of sh from the root of the source; $1, $2, ... are words."""
    return subprocess.run(
        ["sh", "-c", line, "sh", *map(str, words)],
        cwd=ROOT,
        env=SHELL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.by_day(1)
@pytest.mark.parametrize("command", ['simulate "$1" -o "$2"', 'show "$1"', "models", "list"])
def test_a_full_disk_is_one_sentence_and_what_was_written_stays(command, plan, tmp_path):
    path = tmp_path / "predicted.json"
    done = shell(f"$COMMSCHED {command} > /dev/full", plan, path)
    assert done.stderr == "commsched: stdout cannot be written: No space left on device\n"
    assert done.returncode == 2
    assert path.exists() == ("-o" in command)


def test_messages_that_cannot_be_written_stop_no_work(tmp_path):
    path = tmp_path / "plan.json"
    done = shell(f'$COMMSCHED {PLAN} "$1" --progress 2> /dev/full', path)
    assert (done.returncode, path.exists()) == (0, True)
    assert str(path) in done.stdout


@pytest.mark.by_day(1)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_stop_no_work(closed, plan, tmp_path):
    path = tmp_path / "predicted.json"
    done = shell(f'$COMMSCHED simulate "$1" -o "$2" {closed}', plan, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert main(["show", str(path)]) == 0


def test_no_result_replaces_what_it_is_made_of(plan, tmp_path, capsys):
    other = tmp_path / "link.json"
    other.symlink_to(plan)
    before = plan.read_bytes()
    capsys.readouterr()
    for output in (plan, other):
        assert main(["simulate", str(plan), "-o", str(output)]) == 2
        said = f"commsched: {output}: is read by this command; give -o another file\n"
        assert capsys.readouterr().err == said
    assert main([*PLAN.replace("localhost", str(plan)).split(), str(plan)]) == 2
    assert plan.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--plan {plan} --log {plan}", "{plan}: is read by this command; give --log another file"),
        ("--log {new} --figure {new}", "{new}: is written by --log; give --figure another file"),
        ("-o {new} --log {link}", "{link}: is written by -o; give --log another file"),
    ],
)
def test_no_log_or_figure_replaces_an_input_or_another_result(words, said, plan, tmp_path, capsys):
    files = {"plan": plan, "new": tmp_path / "new.svg", "link": tmp_path / "link.svg"}
    files["link"].symlink_to(files["new"])
    before = plan.read_bytes()
    capsys.readouterr()
    assert main(["train", "--net", "mlp:8:2", *words.format(**files).split()]) == 2
    assert capsys.readouterr().err == f"commsched: {said.format(**files)}\n"
    assert plan.read_bytes() == before
