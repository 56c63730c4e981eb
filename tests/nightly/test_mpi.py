"""All tests of tests/mpi on all ranks of a job, for several numbers of ranks."""

import sys

import pytest

from tests.support.jobs import Job

SECONDS = 800


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_all_mpi_tests_pass(ranks):
    tests = [sys.executable, "-m", "pytest", "tests/mpi", "-q", "-x", "-p", "no:cacheprovider"]
    with Job(ranks, tests) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 0, ended.output
    assert " passed" in ended.output
