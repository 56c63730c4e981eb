"""`bench runtime` under mpiexec: every row is measured, and JSON on rank 0 alone."""

import json
import sys

from commsched.lab.bench.all_reduce import SIZES
from tests.support.jobs import Job


def test_every_row_is_measured():
    line = [sys.executable, "-m", "commsched", "bench", "runtime", "--json"]
    with Job(2, line) as job:
        done = job.wait(300)
    assert done.status == 0, done.output
    rows = json.loads(done.output[done.output.index("[\n") :])
    assert len(rows) == 2 * len(SIZES) + 4
    assert all(row["seconds"] > 0 for row in rows)
    assert "us of processor time each" in rows[2 * len(SIZES)]["result"]
    assert "of it hidden" in rows[2 * len(SIZES) + 1]["result"]
