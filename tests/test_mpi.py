"""Starts the tests of tests/mpi on real ranks: this one command passes all tests."""

import sys

import pytest

from tests.support.jobs import Job

# 8 ranks on 2 cores take 90 to 260 s; a hang shows as a test that runs out of time.
SECONDS = 400


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_all_mpi_tests_pass(ranks):
    tests = [sys.executable, "-m", "pytest", "tests/mpi", "-q", "-x", "-p", "no:cacheprovider"]
    with Job(ranks, tests) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 0, ended.output
    assert " passed" in ended.output
