"""`bench sparse` under mpiexec: every method that sums exactly, its bytes and its ratios."""

import json
import sys

import pytest

from commsched.methods import METHODS
from tests.launch import Job

BENCH = [sys.executable, "-m", "commsched", "bench", "sparse"]
EXACT = sorted(name for name, method in METHODS.items() if method.lossless)


def ended(ranks, *options):
    with Job(ranks, [*BENCH, *options]) as job:
        return job.wait(100)


def test_every_exact_method_gives_a_row_and_the_sum_of_mpi():
    names = [*EXACT, "all-gather-direct+coo"]
    chosen = [word for name in names for word in ("--method", name)]
    sizes = ["--numel", "3000", "--density", "0.01", "--density", "0.3", "--repeats", "2"]
    done = ended(3, "--json", *sizes, *chosen)
    assert done.status == 0, done.output
    rows = json.loads(done.output[done.output.index("[\n") :])
    assert [(row["density"], row["method"]) for row in rows] == [
        (density, name) for density in (0.01, 0.3) for name in names
    ]
    for row in rows:
        assert min(row["seconds"], row["dense_seconds"], row["mpi_seconds"]) > 0
        assert row["wire"] > 0
        assert row["floor_seconds"] > 0
    lists = [row for row in rows if row["method"] == "all-gather-direct+coo"]
    for row in lists:  # two lists of 8 B per non-zero and a header reach a rank
        count = 2 * row["density"] * 3000
        slack = 5 * 8 * count**0.5  # five standard errors
        assert row["wire"] == pytest.approx(32 + 8 * count, abs=slack)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            ["--method", "ring+fp16"],
            "method 'ring+fp16' is lossy; allowed are those that sum exact",
        ),
        (["--method", "rign"], "no method named 'rign'"),
        (["--density", "0"], "density must be in (0, 1]"),
        (["--numel", "0"], "numel must be from 1 to 2**31 - 1, got 0"),
        (["--repeats", "0"], "repeats must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, reason):
    done = ended(2, *options)
    assert done.status == 2
    assert reason in done.output
    assert "Traceback" not in done.output
