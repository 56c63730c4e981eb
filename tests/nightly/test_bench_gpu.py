"""`bench gpu` and `bench codecs --device cuda` where NumPy plays CuPy."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from commsched.lab.bench import gpu
from commsched.lab.bench.codecs import PARTITION
from tests.cuda_on_cpu import cpu


@pytest.mark.parametrize("name", gpu.ASKED)
def test_what_is_measured_runs_again_and_again_and_moves_at_least_its_result(name):
    numel = 20_000
    with cpu.kernels():
        work = gpu.made(name, numel, np)
        for _ in range(2):
            work.before()
            work.run()
    per_value = work.fewest / numel
    if name in ("fp16", "bf16"):
        assert per_value == 6
    elif name == PARTITION:
        assert work.fewest == 16 * int(0.01 * numel)
    elif name == gpu.GATHER:  # between what is kept alone and all of the gradient
        assert 0.1 * (4 + 2 + 2 + 2) < per_value < 2 + 0.1 * (4 + 2 + 2)
    else:  # gradient and packet, and what was kept where there is feedback
        assert 4 < per_value < 5.1 or 12 < per_value < 12.5


def test_everything_leaves_one_document_though_parts_fail(tmp_path):
    """NumPy plays CuPy; ranks refuse the way that the environment asks for."""
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here / "cupy_on_cpu"), str(here.parent)])
    words = ["bench", "gpu", "--numel", "2000", "--repeats", "1", "-o", str(tmp_path / "g")]
    ended = subprocess.run(
        [sys.executable, "-m", "commsched", *words, "--json"],
        env={**os.environ, "PYTHONPATH": path, "COMMSCHED_BUFFERS": "fast"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found == json.loads((tmp_path / "g" / "gpu.json").read_text())
    assert [row["codec"] for row in found["codecs"]] == list(gpu.ASKED)
    assert list(found["failed"]) == ["messages", "steps of 2 ranks", "steps of 4 ranks"]
    assert all("COMMSCHED_BUFFERS must be one of" in why for why in found["failed"].values())
    assert found["versions"]["gpu"] == "NumPy"
    assert (tmp_path / "g" / "gpu.png").exists()
