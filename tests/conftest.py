"""Settings for all tests: repeatable examples, no screen, and which tests run side by side."""

import os
from types import ModuleType

import pytest

from commsched.run.job.launcher import environment_rank
from tests.support import sampling

os.environ["MPLBACKEND"] = "Agg"

UNDER_MPI = environment_rank() is not None

# All ranks of an MPI test must draw the same examples, and CI the same ones every time.
sampling.take(nightly=False, repeatable=UNDER_MPI or "CI" in os.environ)

collect_ignore = ["nightly"] if UNDER_MPI else ["mpi", "nightly"]  # unless they are asked for


# Files whose jobs are of one or two ranks, but for a few: others may work beside them.
SMALL = {
    "test_bench_gpu",
    "test_checkpoint",
    "test_cuda_kernels",
    "test_cuda_training",
    "test_device",
    "test_example",
    "test_exchanger",
    "test_sparse_bench",
    "test_train",
}


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups when it is called itself
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With pytest-xdist a file goes to one worker, and all that start many ranks go to the same.

    So many ranks never meet others, and what the tests of a file share is made once. These long
    groups come first, so that no worker is left alone with one.
    """
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if not UNDER_MPI:
        items.sort(key=lambda item: (group_of(item) != "ranks", item.path.stem not in SMALL))


def group_of(item: pytest.Item) -> str:
    """The tests of a group follow each other on one worker."""
    many = isinstance(item, pytest.Function) and starts_ranks(item.module)
    return "ranks" if many and item.path.stem not in SMALL else item.path.stem


def starts_ranks(module: ModuleType) -> bool:
    """Whether a file of tests uses jobs of its own, another file's, or the testbed."""
    homes = {getattr(value, "__module__", None) for value in vars(module).values()}
    return hasattr(module, "system") or not homes.isdisjoint(
        {"tests.support.jobs", "tests.test_faults"}
    )
