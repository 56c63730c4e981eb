"""Checkpoints: killed trainings go on to the bits of those that nobody killed."""

import json
import os
import signal
from pathlib import Path

import pytest

from commsched.cli.main import main
from tests.support.jobs import Job
from tests.test_checkpoint import RANKS, kept_step
from tests.test_train import LIMIT, TRAIN, WORDS, daso_plan, losses, train

GPT = ("--net", "gpt:16:1:2", "--batch", "16", "--optimizer", "adam")


PIPELINE = ("--param", "microbatches=2", "--strategy")


METHODS = {
    "dense": ("--method", "ring+dense"),
    "top-k with feedback": ("--method", "all-gather+topk:0.05:reused"),
    "powersgd": ("--method", "powersgd:2"),
    "two stages": (*PIPELINE, "1f1b", "--method", "ring+dense", "--param", "stages=2"),
    "samo": (*PIPELINE, "samo", "--method", "ring+fp16", "--net", "mlp:32:1"),
    "two stages of samo": (
        *(*PIPELINE, "samo", "--method", "ring+fp16", "--param", "stages=2"),
        *("--net", "mlp:32:1"),
    ),
    "random codec": ("--method", "all-gather+qsgd:4"),
    "elastic averaging": ("--strategy", "shadow", "--param", "rule=easgd"),
    "16 bits": ("--method", "ring+dense", "--precision", "fp16", "--net", "mlp:32:1"),
    "shadow": (
        *("--strategy", "shadow", "--param", "rule=bmuf"),
        *("--param", "momentum=0.5", "--param", "lag=7"),
    ),
    "local": ("--strategy", "local", "--net", "mlp:16:1"),
    "shards of the state": ("--strategy", "zero1", "--precision", "fp16", "--net", "mlp:32:1"),
    "shards of everything": ("--strategy", "zero3", "--param", "gather=bf16"),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_killed_training_goes_on_to_the_same_bits(name, tmp_path):
    victim = [*METHODS].index(name) % RANKS
    goes_on(RANKS, (*GPT, *METHODS[name]), tmp_path, victim=victim)


def test_a_killed_training_with_coded_messages_goes_on_to_the_same_bits(tmp_path):
    """With one plan: what is rounded depends on where the measured layers are cut into stages."""
    net, plan = tmp_path / "net.json", tmp_path / "plan.json"
    assert main(["profile", GPT[1], "--batch", "8", "-o", str(net)]) == 0
    words = ["plan", str(net), "--machine", "localhost", "--lanes", str(RANKS), "-o", str(plan)]
    words += ["--strategy", "1f1b", "--method", "ring+dense"]
    for param in ("stages=2", "microbatches=2", "optimizer=adam", "messages=adaqp:4:50"):
        words += ["--param", param]
    assert main(words) == 0
    goes_on(RANKS, (*GPT, "--strategy", "1f1b", "--plan", str(plan)), tmp_path)


def test_a_killed_training_of_daso_goes_on_with_what_was_under_way(tmp_path):
    """Epochs of 7 steps; a sum is under way for 4 of them; every epoch may change gs and wait."""
    params = ("gs=2", "wait=2", "max_gs=4", "patience=0", "batches=7")
    plan = daso_plan(tmp_path, *params, "cooldown=0")
    goes_on(4, (*WORDS, "--strategy", "daso", "--plan", plan), tmp_path, multiple=7)


def goes_on(
    ranks: int, words: tuple[str, ...], tmp_path: Path, multiple: int = 1, victim: int = 1
) -> None:
    """Kill a rank of a training, resume it, and compare with one that was not killed."""
    folder, log = tmp_path / "kept", tmp_path / "log.jsonl"
    keep = (*words, "--checkpoint", str(folder), "--every", "5", "--log", str(log))
    with Job(ranks, [*TRAIN, *keep, "--steps", str(100000 * multiple)]) as job:
        job.until(lambda: kept_step(folder) >= 10)
        os.kill(job.rank(victim), signal.SIGKILL)
        assert job.wait(LIMIT).status != 0
        assert job.left() == {}
    steps = -(-(kept_step(folder) + 8) // multiple) * multiple
    other = tmp_path / "whole.jsonl"
    found = train(ranks, *keep, "--resume", "--steps", str(steps))
    whole = train(ranks, *words, "--steps", str(steps), "--log", str(other))
    assert losses(log) == losses(other)  # the same samples in the same order
    assert found["parameters"] == whole["parameters"]
    assert found["loss"] == whole["loss"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines if line["type"] == "step"] == list(range(steps))
    assert kept_step(folder) == steps
