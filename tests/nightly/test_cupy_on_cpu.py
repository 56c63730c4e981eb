"""Commands and GPU tests with --device cuda, where NumPy plays CuPy: tests/cupy_on_cpu."""

import json
import os
import sys
from pathlib import Path

import pytest

from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.train.assignment import Settings
from commsched.train.digest import digest_of, digests_of
from commsched.train.in_process import InProcessTraining
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from tests.cuda_on_cpu import cpu
from tests.support.jobs import Job
from tests.support.small_plans import graph, machine, plan

HERE = Path(__file__).parents[1]
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


def test_the_doctor_says_how_buffers_go_that_two_ranks_have_tried():
    doctor = [sys.executable, "-m", "commsched", "doctor"]
    told = "GPU buffers: through pinned memory of the host: this MPI does not take its pointers"
    assert told in ended(doctor, doctor)
    told = "GPU buffers: by its pointers: COMMSCHED_BUFFERS=direct, and a message arrived"
    assert told in ended(doctor, doctor, COMMSCHED_BUFFERS="direct")


def test_a_net_is_measured_on_a_device(tmp_path):
    command = [sys.executable, "-m", "commsched"]
    path = str(tmp_path / "net.json")
    ended([*command, "profile", "mlp:8:2", "--device", "cuda", "-o", path])
    assert all(layer.forward > 0 < layer.backward for layer in net_file.read(path).layers)


def test_messages_of_a_gpu_are_measured_by_both_ways():
    command = [sys.executable, "-m", "commsched", "bench", "buffers", "--device", "cuda", "--json"]
    found = ended(command, command, COMMSCHED_BUFFERS="direct")
    times = json.loads(found[found.index("{") :])
    assert min(times["copy"], times["staged"], times["pointed"]) > 0


def test_ranks_that_have_a_gpu_each_sum_by_nccl(tmp_path):
    command = [sys.executable, "-m", "tests.gpu.ranks", "cuda"]
    variables = {"COMMSCHED_CARDS": str(tmp_path), "COMMSCHED_NATIVE": "nccl"}
    assert "native sums by NCCL" in ended(command, command, **variables)
    assert list(tmp_path.glob("*/*-1"))  # they have been there


NET, BATCH, STEPS = "mlp:12:8", 16, 3
CODED = ["zen", "zen:hierarchical", "balanced", "centralised", "node-union"]
CODED += ["ok-topk:0.1", "powersgd:2", "ring+hash-bitmap:4"]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_ranks_with_and_without_a_gpu_learn_the_bits_of_one_process(nodes, tmp_path):
    made = plan(profile_net(NETS[NET], BATCH // (2 * nodes)), machine(nodes, 2), CODED)
    assert {launch.method for launch in made.launches} == set(CODED)
    plan_file.write(tmp_path / "plan.json", made)
    words = ["train", "--net", NET, "--plan", str(tmp_path / "plan.json"), "--json"]
    words += ["--batch", str(BATCH), "--steps", str(STEPS), "--optimizer", "sgd", "--rate", "0.1"]
    command = [sys.executable, "-m", "commsched", *words, "--device"]
    found = ended(*[[*command, "cuda"], [*command, "cpu"]] * nodes)
    settings = Settings(optimizer="sgd", rate=0.1, batch=BATCH)
    alone = InProcessTraining(NETS[NET], DATA[NETS[NET].data](0), made, settings)
    for step in range(STEPS):
        alone.step(step)
    alone.evaluate()  # once all results are applied
    digest = digest_of(digests_of(alone.learners[0].values))
    assert json.loads(found[found.index("{") :])["parameters"] == digest


@pytest.mark.skipif(bool(cpu.MARKS[0].args[0]), reason="g++ is not installed")
def test_a_run_deals_non_zeros_to_their_owners_by_the_kernels_of_the_device(tmp_path):
    ways = ["zen", "zen:hierarchical"]
    plan_file.write(tmp_path / "plan.json", plan(graph([3000, 3000]), machine(1, 2), ways))
    words = ["run", str(tmp_path / "plan.json"), "-o", str(tmp_path / "m.json"), "--verify"]
    command = [sys.executable, "-m", "commsched", *words, "--steps", "2", "--device"]
    kernels = tmp_path / "kernels"
    variables = {"COMMSCHED_KERNELS": "1", "CUPY_CACHE_DIR": str(kernels)}
    ended([*command, "cuda"], [*command, "cpu"], **variables)
    assert {"hashing", "select"} <= {made.name.split("-")[1] for made in kernels.iterdir()}


@pytest.mark.skipif(bool(cpu.MARKS[0].args[0]), reason="g++ is not installed")
def test_kernels_are_compiled_into_a_folder_and_loaded(tmp_path):
    """By the tests that a GPU is given."""
    test = "test_codecs.py::test_a_gradient_on_the_device_is_coded_there[fp16]"
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"tests/gpu/{test}"]
    variables = {"COMMSCHED_KERNELS": "1", "CUPY_CACHE_DIR": str(tmp_path)}
    assert "1 passed" in ended([sys.executable, *words], **variables)
    (made,) = tmp_path.iterdir()
    assert made.name.startswith("commsched-half-")


@pytest.mark.skipif(bool(cpu.MARKS[0].args[0]), reason="g++ is not installed")
@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("test_codecs.py", "coded_there and (coo or bitmap or block or elias or randomk)"),
        ("test_ranks.py", "staged_exchanges or gpu_give or is_verified or caller or refused"),
    ],
)
def test_what_a_gpu_is_given_passes_here(file, tests):
    """The kernels run in the first, which is slow."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", tests, f"tests/gpu/{file}"]
    variables = {"COMMSCHED_KERNELS": "1"} if file == "test_codecs.py" else {}
    found = ended([sys.executable, *words], **variables)
    assert " passed" in found
    assert "skipped" not in found
