"""All tests of tests/mpi in one job of 8 ranks, in groups of several sizes side by side.

mpiexec -n 8 python -m tests.support.mpi_job
"""

import sys

import pytest
from mpi4py import MPI

from tests.support import ranks
from tests.support.jobs import TESTS_OF_RANKS

SPLITS = ((4, 3, 1), (2, 6), (8,))  # sizes of the groups that work side by side


def main() -> int:
    """Run every session; the exit status of the first that fails."""
    status = 0
    for sizes in SPLITS:
        ranks.split(sizes)
        for name in [name for name in sys.modules if name.startswith("tests.mpi")]:
            del sys.modules[name]  # its groups are other ranks
        status = int(pytest.main([*TESTS_OF_RANKS, *sys.argv[1:]]))
        if status:
            break
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    if status:
        MPI.COMM_WORLD.Abort(status)
