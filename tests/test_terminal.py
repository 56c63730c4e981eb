"""Progress bars: shown where the launcher's stderr is a terminal, and nowhere else."""

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from commsched.progress import progress_bar
from commsched.run.job.launcher import environment, find_mpiexec
from tests.support import sampling
from tests.support.jobs import ROOT

WORDS = ("--net", "mlp:8:1", "--steps", "5", "--method", "ring+dense")


def everything(terminal):
    """What was written to a terminal that nobody writes to any more."""
    parts = []
    with contextlib.suppress(OSError):  # its end
        while part := os.read(terminal, 4096):
            parts.append(part)
    return b"".join(parts).decode()


@pytest.mark.by_day(0)
@pytest.mark.parametrize("looked_at", sampling.some([True, False], 1))
def test_a_bar_is_seen_on_a_terminal_alone(looked_at, tmp_path):
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    with (tmp_path / "said").open("w+b") as said:
        done = subprocess.run(
            [find_mpiexec(), "-n", "2", sys.executable, "-m", "commsched", "train", *WORDS],
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal if looked_at else said,
            env=environment() | os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
        os.close(terminal)
        said.seek(0)
        text = everything(ours) + said.read().decode()
    os.close(ours)
    assert done.returncode == 0, text
    assert ("train: 100%" in text) == looked_at


@pytest.mark.parametrize("first", [0, 3])
def test_a_bar_of_no_time_at_all_is_still_drawn_to_its_end(first, capsys):
    show = progress_bar("sum", 5)
    assert not capsys.readouterr().err
    for done in range(first, 5):
        show(done + 1, f"at {done}")
    text = capsys.readouterr().err
    assert "sum: 100%" in text
    assert "5/5" in text
    assert "at 4" in text
    assert text.endswith("\n")


SOON = "import commsched.progress as p; p.QUIET, p.BEAT = 0.0, 0.01"
COMMAND = f"{SOON}; import sys; from commsched.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.by_day(1)
@pytest.mark.parametrize("looked_at", [True, False])
@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "plan alexnet --machine summit --nodes 2 -o {folder}/plan.json",
            "planning: best lossless",
        ),
        ("price 1000000 --machine summit --nodes 2", "method/s"),
        ("reproduce local", "predicting local"),
        ("profile mlp:8:1 -o {folder}/net.json", "measuring mlp:8:1"),
    ],
)
def test_work_that_takes_a_while_says_so_on_a_terminal_alone(words, shown, looked_at, tmp_path):
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    with (tmp_path / "said").open("w+b") as said:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *words.format(folder=tmp_path).split()],
            stdout=subprocess.DEVNULL,
            stderr=terminal if looked_at else said,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )
        os.close(terminal)
        said.seek(0)
        text = everything(ours) + said.read().decode()
    os.close(ours)
    assert done.returncode == 0, text
    assert (shown in text) == looked_at
    if not looked_at:
        assert text == ""


@pytest.mark.parametrize("plain", [False, True])
def test_a_missed_bar_is_red_on_a_terminal_unless_colours_are_off(plain):
    ours, terminal = pty.openpty()
    code = (
        "from commsched.terminal import *\nwith printable_streams(): show('a\x1bb', alarming=True)"
    )
    colours = {"NO_COLOR": "1"} if plain else {}
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    subprocess.run(
        [sys.executable, "-c", code],
        stdout=terminal,
        env=clean | {"PYTHONPATH": str(ROOT)} | colours,
        timeout=60,
        check=True,
    )
    os.close(terminal)
    text = everything(ours)
    os.close(ours)
    assert text == ("a\\u001bb\r\n" if plain else "\x1b[31ma\\u001bb\x1b[0m\r\n")


@pytest.mark.by_day(0)
def test_work_that_is_soon_over_says_nothing_on_a_terminal(tmp_path):
    ours, terminal = pty.openpty()
    words = ["show", "alexnet"], ["price", "1000", "--machine", "summit", "--nodes", "1"]
    for each in words:
        subprocess.run(
            [sys.executable, "-m", "commsched", *each],
            stdout=subprocess.DEVNULL,
            stderr=terminal,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=60,
            check=True,
        )
    os.close(terminal)
    assert everything(ours) == ""
    os.close(ours)
