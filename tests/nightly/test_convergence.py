"""Convergence: one process trains to the bits of real ranks, and a sweep goes on where it was."""

import sys
from pathlib import Path

import msgspec
import pytest

from commsched.cli.main import main
from commsched.lab.convergence.cases import plan_of
from commsched.lab.convergence.tables import TABLES
from commsched.plan import file as plan_file
from commsched.train import trials
from commsched.train.trials import Trainings
from tests.support.jobs import Job
from tests.test_convergence import DEEP, KNOWN, LIMIT, NET


def swept(plan: Path, table: str, case: str, ranks: int, *words: str) -> Trainings:
    """Trainings of two seeds over two epochs, on `ranks` ranks."""
    path = plan.with_name(f"{ranks}.json")
    net, strategy = TABLES[table].name, plan_file.read(plan).strategy
    line = ["train", "--net", net, "--strategy", strategy, "--plan", str(plan)]
    line += ["--steps", "44", "--evaluate", "22", "--folds", "1", "--seeds", "2", "--rate", "0.05"]
    # The plan's seconds are proportions, which say nothing of this machine.
    line += ["--sweep", str(path), "--force-size", *words]
    with Job(ranks, [sys.executable, "-m", "commsched", *line]) as job:
        done = job.wait(LIMIT)
    assert done.status == 0, done.output
    return trials.read(path)


@pytest.mark.parametrize(
    ("table", "case"),
    [
        ("digits", "fft-schedule"),
        ("digits", "daso"),
        ("digits", "qsgd:4"),
        ("deep", "local-chunked"),
        ("deep", "samo"),
    ],
)
def test_one_process_trains_to_the_bits_and_bytes_of_real_ranks(table, case, tmp_path):
    plan = tmp_path / "plan.json"
    plan_file.write(plan, plan_of((KNOWN | DEEP)[case], TABLES[table], 2, 2))
    together = swept(plan, table, case, 1, "--together")
    alike = [msgspec.structs.replace(trial, seconds=None) for trial in together.trials]
    assert msgspec.structs.replace(together, trials=tuple(alike)) == swept(plan, table, case, 4)
    assert [trial.key for trial in together.trials] == [(0, 0), (0, 1)]
    first, second = together.trials
    assert first.held_out != second.held_out


def test_a_sweep_goes_on_where_it_was_and_refuses_another_plan(tmp_path, capsys):
    plan, kept = tmp_path / "plan.json", tmp_path / "kept.json"
    plan_file.write(plan, plan_of(KNOWN["dense"], NET, 2, 2))
    line = ["train", "--net", NET.name, "--plan", str(plan), "--together", "--folds", "1"]
    line += ["--steps", "3", "--sweep", str(kept), "--force-size"]
    assert main([*line, "--seeds", "1"]) == 0
    once = trials.read(kept)
    assert main([*line, "--seeds", "2"]) == 0
    both = trials.read(kept)
    assert both.trials[:1] == once.trials
    assert "2 trainings; means, and intervals of 95 %" in capsys.readouterr().out
    plan_file.write(plan, plan_of(KNOWN["bf16"], NET, 2, 2))
    assert main([*line, "--seeds", "2"]) == 2
    assert "holds other trainings; give another file" in capsys.readouterr().err
