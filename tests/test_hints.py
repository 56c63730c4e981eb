"""What a command writes it says; what was probably meant is told."""

import gzip
import json

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.testbed import system
from commsched.machine import file as machine_file

PLAN = ["plan", "lstm", "--machine", "localhost", "--time-limit", "0"]


@pytest.mark.parametrize(
    "words",
    [
        [*PLAN, "-o", "page.html"],
        ["simulate", "plan.json", "-o", "page.html"],
        ["calibrate", "-o", "page.html"],
        ["run", "plan.json", "-o", "page.html"],
        ["models", "--transformer", "layers=1", "-o", "page.html"],
    ],
)
def test_json_does_not_replace_a_page(words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.html").write_text("mine")
    assert main(words) == 2
    said = "commsched: page.html: JSON is written, which is no .html; nearest: page.json\n"
    assert capsys.readouterr().err == said
    assert (tmp_path / "page.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*PLAN, "-o", "x.json", "--bucket", "25e6"], "write 25 MB, or 25000000 MB if you mean it"),
        ([*PLAN, "-o", "x.json", "--memory", "16e9"], "write 16 GB, or "),
        ([*PLAN, "-o", "x.json", "--strategy", "autoo"], "zero3; nearest: 'auto'\n"),
        ([*PLAN, "-o", "x.json", "--force", "X"], "--force X: expected TENSOR=METHOD"),
        (["simulate", "resnet50"], "first: commsched plan resnet50 --machine M -o plan.json"),
    ],
)
def test_what_was_probably_meant_is_told(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_beginning_of_a_name_is_enough_for_a_hint():
    with pytest.raises(CommschedError, match=r"nearest: 'p3\.16xlarge'"):
        machine_file.load("p3.16")


def test_a_program_is_found_where_only_roots_path_leads(tmp_path, monkeypatch):
    program = tmp_path / "tc"
    program.write_text("#!/bin/sh\necho shaped\n")
    program.chmod(0o755)
    monkeypatch.setattr(system, "SBIN", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    assert system.command("tc") == "shaped\n"


def test_a_timeline_may_be_packed(tmp_path, capsys):
    plan, packed, bare = (tmp_path / name for name in ("p.json", "t.json.gz", "t.json"))
    assert main([*PLAN, "-o", str(plan)]) == 0
    for path in (packed, bare):
        assert main(["simulate", str(plan), "-o", str(path)]) == 0
    assert gzip.decompress(packed.read_bytes()) == bare.read_bytes()
    assert packed.stat().st_size < bare.stat().st_size / 4
    capsys.readouterr()
    told = []
    for path in (packed, bare):
        assert main(["show", str(path), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    assert told[0] == told[1]
    packed.write_bytes(packed.read_bytes()[:-100])
    assert main(["show", str(packed)]) == 2
    assert "a damaged gzip file" in capsys.readouterr().err
