"""Strategy daso by the commands alone: plan, run, replay, compare; and runs that break."""

import json
import signal
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.machine import file as machine_file
from commsched.plan import file as plan_file
from tests.support.rank_server import on_ranks
from tests.support.small_plans import graph, machine, strategy_plan
from tests.test_faults import struck

SECONDS = 60.0  # for a job to end; generous, because many tests may share two cores
PARAMS = {"gs": 4, "wait": 1, "local_skip": 4, "batches": 6, "warmup": 1, "epochs": 9}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    made = strategy_plan(graph([500] * 4, seconds=1e-3), machine(2, 2), "daso", **PARAMS)
    plan_file.write(tmp_path / "plan.json", made)
    return tmp_path / "plan.json"


@pytest.mark.by_day(1)
def test_the_commands_know_daso(tmp_path, capsys):
    machine_file.write(tmp_path / "machine.json", machine(2, 2))
    plan, measured, predicted = (tmp_path / name for name in ("p.json", "m.json", "s.json"))
    words = [f"--param={key}={value}" for key, value in PARAMS.items()]
    line = ["plan", "deepfm", "--machine", str(tmp_path / "machine.json"), "--scale", "0.001"]
    line += ["--strategy", "daso", *words, "--planner", "ddp-25mb", "-o", str(plan)]
    assert main(line) == 0
    assert main(["show", str(plan)]) == 0
    assert "among peers, cycling, every 4 steps, merged 1 later" in capsys.readouterr().out
    ended = on_ranks(4, "run", str(plan), "-o", str(measured), "--steps", "14")
    assert ended.status == 0, ended.output
    again = ["simulate", str(plan), "-o", str(predicted), "--steps", "14"]
    assert main([*again, "--replay", str(measured)]) == 0
    capsys.readouterr()
    assert main(["compare", str(predicted), str(measured), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["only_predicted"] == found["only_measured"] == []
    assert main(["plot", str(predicted), str(measured), "-o", str(tmp_path / "x.svg")]) == 0


@pytest.mark.by_day(0)
def test_a_stopped_rank_is_named_by_the_peers_that_wait_for_it(plan):
    ended = struck(plan, 3, signal.SIGSTOP, "--timeout", "1.5", ranks=4, spans=300)
    assert "no progress for 1.5 s (--timeout)" in ended.output
    assert "from rank 3" in ended.output or "to rank 3" in ended.output
