"""All tests of tests/mpi on all ranks of a job, for several numbers of ranks."""

import sys

import pytest

from tests.support.jobs import TESTS_OF_RANKS, Job

SECONDS = 800


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_all_mpi_tests_pass(ranks):
    with Job(ranks, [sys.executable, "-m", "pytest", *TESTS_OF_RANKS]) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 0, ended.output
    assert " passed" in ended.output
