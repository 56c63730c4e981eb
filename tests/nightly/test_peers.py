"""`bench torch` trains a small model on a testbed: all contenders, a row, and jobs that resume."""

import json
import os
import subprocess
import sys

import pytest

from commsched.lab.testbed import system
from tests.support.jobs import Job

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(system.lacking() is not None, reason=str(system.lacking()))


def bench(folder):
    words = ["bench", "torch", "--model", "dlrm", "--bed", "2x200mbit", "--quick", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "commsched", *words, "-o", str(folder)],
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_powersgd_of_pytorch_sums_many_buckets_in_one_order(tmp_path):
    """Buckets of one process group took each other's messages, and gloo ended the job."""
    command = ["-m", "commsched.lab.peers.turns", "gpt", "--rounds", "2"]
    with Job(2, [sys.executable, *command, "-o", str(tmp_path / "turns.json")]) as job:
        ended = job.wait(300)
    assert ended.status == 0, ended.output
    names = {each["name"] for each in json.loads((tmp_path / "turns.json").read_text())["trained"]}
    assert {"ddp powersgd:1", "ddp powersgd:4"} <= names


def test_contenders_train_in_turns_and_a_second_run_reads_what_is_there(tmp_path):
    rows, said = bench(tmp_path)
    assert rows[0]["what"] == "2x200mbit, dlrm, lossless"
    assert "training in turns" in said
    turns = json.loads((tmp_path / "2x200mbit" / "dlrm" / "turns-0.json").read_text())
    losses = {each["name"]: each["loss"] for each in turns["trained"]}
    assert {"plan lossless", "ddp 1 MB", "ddp 100 MB"} <= set(losses)
    dense = losses["ddp 25 MB"]
    assert losses["plan lossless"] == pytest.approx(dense, rel=1e-4)
    again, said = bench(tmp_path)
    assert again == rows
    assert said == ""
