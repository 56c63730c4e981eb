"""The error budget under `train`: what leaves it is summed dense from then on, on all ranks."""

import json
import sys
from dataclasses import replace
from pathlib import Path

from commsched import training_log as training
from commsched.cli.main import main
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.plan import file as plan_file
from commsched.plan.model import Plan
from commsched.planner.fixed_method import given
from commsched.planner.request import Request
from commsched.timeline import file as timeline_file
from commsched.train.profile import profile_net
from commsched.train.registry import NETS
from tests.support.jobs import Job
from tests.test_train import started

RANKS, STEPS, BUDGET = 2, 8, 0.05
NET = ("--net", "mlp:32:1", "--batch", "16", "--steps", str(STEPS))


def budgeted(path: Path) -> Plan:
    """A plan whose tensors all leave their budget.

    A twentieth of a gradient's elements never has 95 % of its norm, on any net.
    """
    on = resized(machine_file.load("localhost"), 1, RANKS)
    request = Request(net=profile_net(NETS["mlp:32:1"], 8), machine=on)
    made = replace(given(request, "all-gather+topk:0.05"), max_error=BUDGET)
    plan_file.write(path, made)
    return made


def test_one_process_that_would_not_watch_a_budget_refuses_it(tmp_path, capsys):
    budgeted(tmp_path / "plan.json")
    words = ["train", *NET, "--plan", str(tmp_path / "plan.json"), "--together"]
    assert main([*words, "--sweep", str(tmp_path / "trials.json")]) == 2
    assert "--together does not watch the plan's error budget" in capsys.readouterr().err


def test_tensors_that_leave_their_budget_are_summed_dense_and_said(tmp_path):
    path, log, measured = (tmp_path / name for name in ("plan.json", "log.jsonl", "measured.json"))
    made = budgeted(path)
    done = started(RANKS, *NET, "--plan", str(path), "--log", str(log), "-o", str(measured))
    assert done.status == 0, done.output
    falls = timeline_file.read(measured).header.fallbacks
    assert {fall.tensor for fall in falls} == set(made.net.tensors)
    assert len({fall.since for fall in falls}) == 1
    assert all(f"tensor {fall.tensor!r} left its budget in step 0" in done.output for fall in falls)
    assert "all ranks hold the same parameters" in done.output
    sent = [row.sent_bytes for row in training.read(log) if isinstance(row, training.LogRow)]
    since = falls[0].since
    assert max(sent[:since]) < min(sent[since:]) / 3
    kept = started(RANKS, *NET, "--plan", str(path), "--checkpoint", str(tmp_path / "kept"))
    assert "is watched for strategy 'sync' without --checkpoint only" in kept.output


def test_what_a_training_sends_is_a_mean_over_all_its_steps(tmp_path):
    """A training remembers only its newest steps: here two, by another method than the first."""
    log = tmp_path / "log.jsonl"
    methods = ("--method", "ring+dense", "--later", "4=all-gather+topk:0.05")
    words = ["train", *NET, *methods, "--log", str(log), "--json"]
    program = (
        "from commsched.train import training; training.NEWEST = 2\n"
        f"from commsched.cli.main import main; raise SystemExit(main({words}))"
    )
    with Job(RANKS, [sys.executable, "-c", program]) as job:
        done = job.wait(120)
    assert done.status == 0, done.output
    rows = [row.sent_bytes for row in training.read(log) if isinstance(row, training.LogRow)]
    found = json.loads(done.output[done.output.index("{") :])
    assert found["sent_bytes_per_step"] == sum(rows) / len(rows) != sum(rows[-2:]) / 2
