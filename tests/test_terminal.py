"""Progress bars: shown where the launcher's stderr is a terminal, and nowhere else."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from commsched.run.launcher import environment, find_mpiexec
from tests.launch import ROOT

WORDS = ("--net", "mlp:8:1", "--steps", "5", "--method", "ring+dense")


@pytest.mark.parametrize("looked_at", [True, False])
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
        text = os.read(ours, 10**5).decode() + said.read().decode()
    os.close(ours)
    assert done.returncode == 0, text
    assert ("train: 100%" in text) == looked_at
