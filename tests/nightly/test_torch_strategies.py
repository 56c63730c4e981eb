"""Plans of `daso` and `shadow` in PyTorch, on two nodes of two ranks, against torch and MPI."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from tests.support.jobs import Job

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

CHECKS = Path(__file__).parents[1] / "support" / "torch_strategy_checks.py"
NAMES = re.findall(r"^@check\ndef (\w+)", CHECKS.read_text(), re.MULTILINE)


def test_four_ranks_average_as_plain_mpi_does():
    command = [sys.executable, "-m", "tests.support.torch_job", *NAMES]
    with Job(4, command, variables={"OMP_NUM_THREADS": "1"}) as job:
        output = job.wait(300).output
    found = dict(re.findall(r"<(\w+)>(.*?)</\1>", output, re.DOTALL))
    assert found == dict.fromkeys(NAMES, "ok"), output
