"""Commands and GPU tests with --device cuda, where NumPy plays CuPy: tests/cupy_on_cpu."""

import json
import os
import sys
from pathlib import Path

import pytest

from commsched.plan import file as plan_file
from tests.cuda_on_cpu import cpu
from tests.launch import Job
from tests.plans import graph, machine, plan

HERE = Path(__file__).parent
PATH = os.pathsep.join([str(HERE / "cupy_on_cpu"), str(HERE.parent)])


def ended(*commands, **variables):
    """What a rank for each command prints, all in one job."""
    ones = [1] * len(commands)
    with Job(ones, *commands, variables={"PYTHONPATH": PATH, **variables}) as job:
        found = job.wait(200)
    assert found.status == 0, found.output
    return found.output


def test_ranks_with_and_without_a_gpu_run_one_plan(tmp_path):
    methods = ["ring+dense", "native+dense", "halving-doubling+fp16", "all-gather+coo", "zen"]
    made = plan(graph([30_000] * len(methods)), machine(1, 2), methods)
    plan_file.write(tmp_path / "plan.json", made)
    words = ["run", str(tmp_path / "plan.json"), "-o", str(tmp_path / "m.json"), "--verify"]
    command = [sys.executable, "-m", "commsched", *words, "--json", "--device"]
    found = ended([*command, "cuda"], [*command, "cpu"])
    errors = json.loads(found[found.index("{") :])["verified"]["largest_relative_error"]
    assert set(errors) == set(methods)
    assert all(error < (1e-3 if "fp16" in name else 1e-6) for name, error in errors.items())


@pytest.mark.skipif(bool(cpu.MARKS[0].args[0]), reason="g++ is not installed")
def test_kernels_are_compiled_into_a_folder_and_loaded(tmp_path):
    """By the tests that a GPU is given."""
    test = "test_codecs.py::test_a_gradient_on_the_device_is_coded_there[fp16]"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/gpu/{test}"]
    variables = {"COMMSCHED_KERNELS": "1", "CUPY_CACHE_DIR": str(tmp_path)}
    assert "1 passed" in ended([sys.executable, *words], **variables)
    (made,) = tmp_path.iterdir()
    assert made.name.startswith("commsched-half-")
