"""Under MPI only rank 0 reports; the other ranks print just what failed on them."""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from mpi4py import MPI

from commsched.run.job import agree

RANK = MPI.COMM_WORLD.rank

# pytest clears away old temporary folders, over which ranks that begin together would stumble.
_folder = tempfile.mkdtemp(prefix=f"commsched-rank{RANK}-")
os.environ["PYTEST_DEBUG_TEMPROOT"] = _folder
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    manager = session.config.pluginmanager
    if RANK != 0:
        manager.unregister(manager.getplugin("terminalreporter"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if RANK != 0 and report.failed:
        sys.__stderr__.write(f"rank {RANK}: {report.nodeid}\n{report.longreprtext}\n")
        sys.__stderr__.flush()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks: the first rank's."""
    return Path(agree.gather_text(str(tmp_path), MPI.COMM_WORLD)[0])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for what several tests of a file look at."""
    return Path(agree.gather_text(str(tmp_path_factory.mktemp("shared")), MPI.COMM_WORLD)[0])
