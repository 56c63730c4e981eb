"""Supervised trainings whose ranks are killed end with the bits of an undisturbed one."""

import json
import random
import sys
import time
from collections.abc import Callable

import pytest

from commsched.cli.main import main
from tests.support.jobs import Ended, Job
from tests.support.supervised import Supervised
from tests.test_train import train

RANKS, KILLS = 4, 20
COMMSCHED = (sys.executable, "-m", "commsched")
EXAMPLE = "examples/torch_elastic.py"
PROMISED = 15.0  # s from the loss of a rank to the next step
NET = ("--net", "words:8:300", "--batch", "24", "--rate", "0.05", "--optimizer", "adam")
NET += ("--method", "all-gather+topk:0.05:reused", "--steps", "1000")  # with feedback


@pytest.fixture(scope="module")
def whole() -> str:
    """The digest of the parameters of a training that nobody kills."""
    return str(train(RANKS, *NET)["parameters"])


def goes_on(job: Supervised, seed: int, begun: Callable[[], int]) -> tuple[Ended, float]:
    """Kill a rank at a random moment, after some of the steps that `begun` counts.

    Returns how the job ends, and the seconds until it got on.
    """
    draw = random.Random(seed)
    if draw.random() < 0.25:
        time.sleep(draw.uniform(0, 2))  # while ranks start
    else:
        moment = draw.randrange(900)
        job.until(lambda: begun() > moment)
    victim = draw.randrange(RANKS)
    pid, killed = job.kill(victim), time.monotonic()
    said = f"commsched: rank {victim} (process {pid} on "
    job.until(lambda: said in job.output)
    before = begun()
    job.until(lambda: begun() != before)
    lost = time.monotonic() - killed
    done = job.wait(120)
    assert job.left() == {}
    assert done.status == 0, done.output
    return done, lost


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_training_that_loses_a_rank_ends_with_the_same_bits(seed, whole, tmp_path):
    log = tmp_path / "log.jsonl"
    words = ("--checkpoint", str(tmp_path / "kept"), "--every", "20", "--log", str(log))
    with Supervised("train", *NET, *words, "--elastic", str(RANKS), "--json") as job:
        done, lost = goes_on(
            job, seed, lambda: log.read_bytes().count(b"\n") if log.exists() else 0
        )
    assert json.loads(done.output[done.output.index("{\n") :])["parameters"] == whole
    assert lost < PROMISED


@pytest.fixture(scope="module")
def torch_plan(tmp_path_factory) -> str:
    """The path of a plan with feedback for the example of a supervised script."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("torch")
    net, path = str(folder / "net.json"), str(folder / "plan.json")
    line = [*COMMSCHED, "capture", f"{EXAMPLE}:build", "-o", net, "--steps", "3"]
    with Job(RANKS, line) as job:
        done = job.wait(100)
    assert done.status == 0, done.output
    lossy = ("--force", "0.weight=all-gather+topk:0.1")
    words = ("--machine", "localhost", "--lanes", str(RANKS), *lossy, "-o", path)
    assert main(["plan", net, *words]) == 0
    return path


@pytest.fixture(scope="module")
def torch_whole(torch_plan, tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("whole"))
    with Job(RANKS, [sys.executable, EXAMPLE, torch_plan, "--folder", folder]) as job:
        done = job.wait(100)
    assert done.status == 0, done.output
    return done.output.splitlines()[-1]


def steps_begun(output: str) -> int:
    """The steps that the example tells of, and its starts."""
    return 20 * output.count("\nstep ") + output.count("goes on with step ")


@pytest.mark.parametrize("seed", range(5))
def test_a_script_of_pytorch_that_loses_a_rank_ends_with_the_same_bits(
    seed, torch_plan, torch_whole, tmp_path
):
    words = ("-n", str(RANKS), "--checkpoint", str(tmp_path), "--", sys.executable, EXAMPLE)
    with Supervised("elastic", *words, torch_plan) as job:
        done, lost = goes_on(job, seed, lambda: steps_begun(job.output))
    assert done.output.splitlines()[-1] == torch_whole
    assert torch_whole.startswith("parameters ")
    assert lost < PROMISED
