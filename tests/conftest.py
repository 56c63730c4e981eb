"""Settings for all tests: repeatable examples, no screen, and which tests run side by side."""

import os
import signal
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from commsched.kernels.threads import one_thread
from commsched.run.job.launcher import environment_rank

one_thread()  # before NumPy is imported: workers side by side share the cores
# Hundreds of processes begin here. Each would compile the whole package again; and each would
# ignore Ctrl-C where a shell has started this one in its background.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from tests.support import sampling  # noqa: E402

os.environ["MPLBACKEND"] = "Agg"

UNDER_MPI = environment_rank() is not None
HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "all cases of every law, and tests/nightly too: what runs by night"
    parser.addoption("--whole", action="store_true", help=help_text)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many cases the laws take, before they are imported."""
    # All ranks of an MPI test must draw the same examples, and CI the same ones every time.
    sampling.take(nightly=config.getoption("--whole"), repeatable=UNDER_MPI or "CI" in os.environ)


@pytest.fixture(scope="session", autouse=True)
def _last_operations(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Killed jobs leave nothing in the folder of this machine."""
    os.environ["COMMSCHED_LAST"] = str(tmp_path_factory.mktemp("last"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is neither asked for by its path nor of this kind of run."""
    left_out = (not UNDER_MPI and collection_path == HERE / "mpi") or (
        not config.getoption("--whole") and collection_path == HERE / "nightly"
    )
    return True if left_out else None


# Files whose tests follow each other on one worker of pytest-xdist: two jobs of many ranks at once
# would crowd two cores, and the ranks of a server stay for the next file. Others are groups of one.
GROUPS = {
    "eight ranks": {"test_mpi", "test_exam"},
    "served": {
        *("test_train", "test_train_local", "test_train_shadow", "test_train_pipelines"),
        *("test_train_guard", "test_checkpoint", "test_sparse_bench", "test_device"),
        "test_daso_run",
        "test_refusals",
    },
    "clocks": {  # ranks that stop, come late or end early, and how soon the others say so
        *("test_faults", "test_faults_pipelines", "test_watchdog", "test_exchanger"),
        *("test_run_refusals", "test_last", "test_unlike_ranks"),
    },
    "jobs": {
        *("test_terminal", "test_example", "test_launcher", "test_torch", "test_torch_examples"),
        *("test_testbed", "test_testbed_faults", "test_replan", "test_cupy_on_cpu"),
        *("test_convergence", "test_bench_measured", "test_bench_gpu"),
    },
}
# Groups in the order in which they begin: the longest first, and those that watch the clock so late
# that the eight ranks have ended.
BEGIN = ["eight ranks", "test_codecs_lossy", "test_strategies", "test_reproduce", "test_totals"]
BEGIN += ["test_api", "test_plot", "test_methods", "test_planner_guard", "test_planner_best"]
BEGIN += ["test_verdict", "test_codecs", "test_cli", "test_pipelines_learn", "test_libraries"]
BEGIN += ["test_planner_bound", "test_sweep", "test_train_tensor", "test_fuzz_cases"]
BEGIN += ["clocks", "served", "jobs"]


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups when it is called itself
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which tests go to the same worker, and put long groups first: no worker ends alone."""
    named = any("::" in arg for arg in config.args)
    if not (named or config.getoption("--whole") or whole_job()):
        config.hook.pytest_deselected(items=leave_to_the_night(items))
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group_of(item)))
    if not UNDER_MPI:
        items.sort(key=lambda item: place_of(group_of(item)))


def whole_job() -> bool:
    """Whether this is one of the ranks of a job that is not split: those of tests/nightly."""
    if not UNDER_MPI:
        return False
    from tests.support import ranks

    return not ranks.in_groups


def leave_to_the_night(items: list[pytest.Item]) -> list[pytest.Item]:
    """Take the cases out that tests marked `by_day` do not run by day, and return them."""
    cases: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("by_day") is not None:
            cases[item.nodeid.split("[")[0]].append(item)
    left = {item for found in cases.values() for item in found}
    for found in cases.values():
        left -= {*sampling.some(found, found[0].get_closest_marker("by_day").args[0])}
    out = [item for item in items if item in left]
    items[:] = [item for item in items if item not in left]
    return out


def group_of(item: pytest.Item) -> str:
    """Return the group of the file of a test."""
    stem = item.path.stem
    return next((group for group, stems in GROUPS.items() if stem in stems), stem)


def place_of(group: str) -> int:
    """Return when a group begins."""
    return BEGIN.index(group) if group in BEGIN else len(BEGIN)
