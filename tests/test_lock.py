"""Locks name their holder, and end with it, however it ends."""

import signal
import subprocess
import sys

import pytest

from commsched.errors import CommschedError
from commsched.run.job.lock import locked

HOLD = """
import sys, time
from pathlib import Path
from commsched.run.job.lock import locked
with locked(Path(sys.argv[1]), "it"):
    print("locked", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_lock_names_its_holder_and_dies_with_it(kind, tmp_path):
    path = tmp_path if kind == "folder" else tmp_path / "m.json"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        want = f"^it is in use by another job: process {holder.pid} on host .*, since 2"
        with pytest.raises(CommschedError, match=want), locked(path, "it", wait=0.0):
            pass
        holder.send_signal(signal.SIGKILL)
    with locked(path, "it", wait=0.0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_waits_for_a_holder_that_is_about_to_end(tmp_path):
    command = [sys.executable, "-c", HOLD.replace("600", "0.3"), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with locked(tmp_path, "it", wait=60.0):
            assert list(tmp_path.iterdir()) == [tmp_path / ".lock"]
    assert list(tmp_path.iterdir()) == []
