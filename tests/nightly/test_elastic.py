"""Supervised trainings whose ranks are killed end with the bits of an undisturbed one."""

import json
import random
import time
from pathlib import Path

import pytest

from tests.support.supervised import Supervised
from tests.test_train import train

RANKS, KILLS = 4, 20
PROMISED = 15.0  # s from the loss of a rank to the next step
NET = ("--net", "words:8:300", "--batch", "24", "--rate", "0.05", "--optimizer", "adam")
NET += ("--method", "all-gather+topk:0.05:reused", "--steps", "1000")  # with feedback


@pytest.fixture(scope="module")
def whole() -> str:
    """The digest of the parameters of a training that nobody kills."""
    return str(train(RANKS, *NET)["parameters"])


def steps_begun(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_training_that_loses_a_rank_ends_with_the_same_bits(seed, whole, tmp_path):
    draw, log = random.Random(seed), tmp_path / "log.jsonl"
    words = ("--checkpoint", str(tmp_path / "kept"), "--every", "20", "--log", str(log))
    with Supervised("train", *NET, *words, "--elastic", str(RANKS), "--json") as job:
        if draw.random() < 0.25:
            time.sleep(draw.uniform(0, 2))  # while ranks start
        else:
            moment = draw.randrange(900)
            job.until(lambda: steps_begun(log) > moment)
        victim = draw.randrange(RANKS)
        pid = job.kill(victim)
        begun = time.monotonic()
        said = f"commsched: rank {victim} (process {pid} on "
        job.until(lambda: said in job.output)
        before = steps_begun(log)
        job.until(lambda: steps_begun(log) != before)
        assert time.monotonic() - begun < PROMISED
        done = job.wait(120)
        assert job.left() == {}
    assert done.status == 0, done.output
    assert json.loads(done.output[done.output.index("{\n") :])["parameters"] == whole
