"""What every command shares: one line of error, exit statuses, JSON."""

import json
import os
import subprocess
import sys

import pytest

import commsched.ir.file
from commsched.cli.main import main
from commsched.ir.transformer import gpt
from commsched.shipped import names


def test_an_error_is_one_line_and_exit_2(tmp_path, capsys):
    output = str(tmp_path / "net.json")
    assert main(["models", "--transformer", "layers=2,hidden=6,heads=4", "-o", output]) == 2
    shown = capsys.readouterr()
    assert shown.err == "commsched: --transformer: hidden=6 must be a multiple of heads=4\n"
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_ranks_that_fail_alike_say_it_once(rank, lines):
    done = subprocess.run(
        [sys.executable, "-m", "commsched", "models", "-o", "x.json"],
        env=os.environ | {"PMI_RANK": rank, "PMI_SIZE": "2"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == lines


@pytest.mark.parametrize(
    "sizes",
    [
        "",
        "layers=2",
        "layers=2,hidden=8,heads=2,layers=2",
        "layers=2,hidden=8,heads=2,depth=1",
        "layers=0,hidden=8,heads=2",
        "layers=-1,hidden=8,heads=2",
        "layers=nan,hidden=8,heads=2",
        "layers=2,hidden=8,heads=0",
        "layers=100000,hidden=8,heads=2",
        "layers=1,hidden=99999999999,heads=1",
        "layers=9999999999999999999,hidden=8,heads=2",
    ],
)
def test_bad_sizes_of_a_transformer_write_nothing(sizes, tmp_path, capsys):
    assert main(["models", "--transformer", sizes, "-o", str(tmp_path / "net.json")]) == 2
    assert capsys.readouterr().err.startswith("commsched: ")
    assert list(tmp_path.iterdir()) == []


def test_a_transformer_is_the_formula_written_down(tmp_path, capsys):
    path = tmp_path / "small.json"
    sizes = "layers=2,hidden=64,heads=4,sequence=16,vocabulary=100,batch=3"
    assert main(["models", "--transformer", sizes, "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    want = gpt("small", layers=2, hidden=64, heads=4, sequence=16, vocabulary=100, batch=3)
    assert commsched.ir.file.load(path) == want


def test_models_lists_all_that_is_shipped(capsys):
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    for kind in ("nets", "machines"):
        assert names(kind)
        assert [item["name"] for item in listed[kind]] == names(kind)
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in names("nets") + names("machines"))
