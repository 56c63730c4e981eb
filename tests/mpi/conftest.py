"""Under MPI only rank 0 reports; the other ranks print just what failed on them."""

import atexit
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

import pytest
from mpi4py import MPI

from commsched.run.job import agree, segments
from tests.support import ranks
from tests.support.ranks import WORLD

RANK = WORLD.rank
USUAL = ((1, 3), (1, 4))  # sizes of the groups that run tests without a mark, half of them each

# pytest clears away old temporary folders, over which ranks that begin together would stumble.
_folder = tempfile.mkdtemp(prefix=f"commsched-rank{MPI.COMM_WORLD.rank}-")
os.environ["PYTEST_DEBUG_TEMPROOT"] = _folder
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def pytest_sessionstart(session: pytest.Session) -> None:
    ranks.meet(MPI.COMM_WORLD)
    segments.unname()
    manager = session.config.pluginmanager
    if RANK != 0:
        manager.unregister(manager.getplugin("terminalreporter"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if RANK != 0 and report.failed:
        sys.__stderr__.write(
            f"rank {RANK} of {WORLD.size}: {report.nodeid}\n{report.longreprtext}\n"
        )
        sys.__stderr__.flush()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a job that is split, a test runs in groups of the sizes that its mark `groups` names."""
    if ranks.in_groups:
        items[:] = [item for item in items if WORLD.size in sizes(item)]


def sizes(item: pytest.Item) -> tuple[int, ...]:
    """Ranks of the groups that run a test; none: it runs by night alone."""
    mark = item.get_closest_marker("groups")
    if mark is not None:
        return mark.args
    return USUAL[zlib.crc32(item.nodeid.encode()) % len(USUAL)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One folder for all ranks: the first rank's."""
    return Path(agree.gather_text(str(tmp_path), WORLD)[0])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for what several tests of a file look at."""
    return Path(agree.gather_text(str(tmp_path_factory.mktemp("shared")), WORLD)[0])
