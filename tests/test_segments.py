"""A job that is killed leaves no memory behind that its ranks shared."""

import os
import signal
import sys
from pathlib import Path

import pytest

from commsched.run.job.launcher import family, library
from commsched.run.job.segments import MPICH
from tests.support.jobs import Job

MEETS = """
import time
from commsched.run.job.meeting import meet
meet("test", {}, 60.0)
print("met", flush=True)
time.sleep(60)
"""
DELETED = " (deleted)"


def segments(pid: int) -> set[str]:
    """MPICH's segments that a process maps."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line[line.index(MPICH) :] for line in lines if MPICH in line}


@pytest.mark.skipif(family(library()) != "MPICH", reason="its segments have names")
def test_a_killed_job_leaves_no_shared_memory():
    with Job(2, [sys.executable, "-c", MEETS]) as job:
        job.until(lambda: job.output.count("met") == 2)
        mapped = segments(job.rank(0)) | segments(job.rank(1))
        os.kill(job.rank(1), signal.SIGKILL)
        job.wait(60.0)
        assert job.left() == {}
    assert mapped
    for name in mapped:
        assert name.endswith(DELETED)
        assert not Path(name.removesuffix(DELETED)).exists()
