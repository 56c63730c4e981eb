"""`bench runtime` under mpiexec: every row is measured, and JSON on rank 0 alone."""

import importlib.util
import json
import sys

import pytest

from commsched.lab.bench.all_reduce import SIZES
from tests.support.jobs import Job


def test_every_row_is_measured():
    line = [sys.executable, "-m", "commsched", "bench", "runtime", "--json"]
    with Job(2, line) as job:
        done = job.wait(300)
    assert done.status == 0, done.output
    rows = json.loads(done.output[done.output.index("[\n") :])
    assert len(rows) == 2 * len(SIZES) + 6
    assert all(row["seconds"] > 0 for row in rows)
    assert "us of processor time each" in rows[2 * len(SIZES)]["result"]
    assert "of it hidden" in rows[2 * len(SIZES) + 1]["result"]


def test_a_part_is_measured_alone():
    line = [sys.executable, "-m", "commsched", "bench", "runtime", "--json", "--part", "hidden"]
    with Job(2, line) as job:
        done = job.wait(100)
    assert done.status == 0, done.output
    (row,) = json.loads(done.output[done.output.index("[\n") :])
    assert row["what"] == "exchange of 32 MB under compute"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_what_a_pytorch_script_pays_is_measured():
    line = [sys.executable, "-m", "commsched", "bench", "torch-overhead", "--json"]
    with Job(2, line) as job:
        done = job.wait(400)
    assert done.status == 0, done.output
    rows = json.loads(done.output[done.output.index("[\n") :])
    assert [row["bar"] for row in rows] == ["<= 20 us"] * 2 + ["<= +3 %", "<= +1 %", "<= 60 s"]
    assert all(0 < row["seconds"] < 300 for row in rows)
    assert rows[-1]["result"].startswith("107 layers, 25557032 parameters")
