"""Starts the tests of tests/mpi on real ranks: one job of 8, in groups side by side."""

import sys

from tests.support.jobs import Job

SECONDS = 280


def test_all_mpi_tests_pass_in_groups_of_several_sizes():
    with Job(8, [sys.executable, "-m", "tests.support.mpi_job"]) as job:
        ended = job.wait(SECONDS)
    assert ended.status == 0, ended.output
    assert " passed" in ended.output
