"""Interrupted trainings of the convergence table go on; those of other settings begin anew."""

from dataclasses import replace
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.convergence import table as convergence
from commsched.lab.convergence import trainings as bench
from commsched.lab.convergence.cases import cases, plan_of
from commsched.lab.convergence.table import ConvergenceTable
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.trainings import ConvergenceRequest
from commsched.train.trials import Trainings, read, write

NET = TABLES["digits"]
KNOWN = {case.name: case for case in cases("digits")}


def test_a_case_goes_on_from_finished_trainings_unless_they_are_of_other_settings(
    tmp_path, monkeypatch
):
    monkeypatch.setitem(TABLES, "digits", replace(NET, periods=1))
    wanted = ConvergenceRequest(table="digits", names=("dense",), folds=1, seeds=1)
    left, said = bench.path_of(wanted, tmp_path).with_name("dense.json"), []
    left.parent.mkdir()
    plan = plan_of(KNOWN["dense"], TABLES["digits"], 2, 2)
    other = Trainings(plan=plan.hash, made={"--steps": 10 * NET.period})
    write(left, other)

    def full(path: Path, table: ConvergenceTable) -> None:
        raise CommschedError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(convergence, "write", full)
        with pytest.raises(CommschedError, match="no space left"):
            bench.train(wanted, tmp_path, said.append)
    found = read(left)
    assert found.made["--steps"] == NET.period
    table = bench.train(wanted, tmp_path, said.append)
    assert table.cases[0].trained == found
    assert [path.name for path in left.parent.iterdir()] == ["table.json"]
    # A finished case is not trained again, whatever an older run has left.
    write(left, other)
    assert bench.train(wanted, tmp_path, said.append).cases == table.cases


def test_a_case_that_fails_is_exit_1(tmp_path, capsys):
    left = tmp_path / "digits" / "dense.json"
    left.parent.mkdir()
    left.write_text("{")
    words = ["--table", "digits", "--case", "dense", "--folder", str(tmp_path)]
    with pytest.raises(SystemExit, match="1"):
        main(["bench", "convergence", *words])
    assert f"dense: {left}" in capsys.readouterr().err


def test_the_quick_cases_are_those_that_a_table_has(tmp_path, capsys):
    words = ["bench", "convergence", "--quick", "--table", "deep", "--folder", str(tmp_path)]
    main([*words, "--time-limit", "0.01"])
    said = capsys.readouterr().err
    assert "of 1 cases are left" in said or "of 2 cases are left" in said


@pytest.mark.parametrize("flag", ["--again", "--cosines"])
def test_a_time_limit_that_would_do_nothing_is_refused(flag, tmp_path, capsys):
    words = ["bench", "convergence", flag, "--time-limit", "5", "--folder", str(tmp_path)]
    assert main(words) == 2
    assert f"not for {flag}" in capsys.readouterr().err


def test_a_table_with_another_schedule_is_trained_again(tmp_path, monkeypatch):
    wanted = ConvergenceRequest(table="digits", names=("dense",), folds=1, seeds=1)
    losses = []
    for schedule in ("constant", "cosine", "constant"):
        monkeypatch.setitem(TABLES, "digits", replace(NET, periods=1, schedule=schedule))
        (case,) = bench.train(wanted, tmp_path, lambda sentence: None).cases
        losses.append(case.trained.trials[0].end.loss)
    assert losses[0] == losses[2] != losses[1]
