"""A collective and a codec of a user: proved and run on real ranks, planned for 1,024."""

import json
import subprocess
import sys

import pytest

PLUG_INS = ("examples/torus_2d.py", "examples/int16.py")
METHODS = ("torus-2d+int16:12", "torus-2d+dense")


def commsched(*words: str) -> str:
    run = [sys.executable, "-m", "commsched", *words]
    return subprocess.run(run, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("file", PLUG_INS)
def test_all_laws_hold_on_1024_ranks_and_real_ones(file):
    (laws,) = json.loads(commsched("check", file, "--ranks", "8,1024", "--json")).values()
    found = {law["law"]: law["holds"] for law in laws}
    assert False not in found.values()
    assert found["run on 4 ranks"]
    assert found["price on 1024 ranks"]


def test_they_are_planned_and_simulated_on_1024_ranks(tmp_path):
    plan, plug_ins = str(tmp_path / "plan.json"), [w for f in PLUG_INS for w in ("--plugin", f)]
    methods = [word for name in METHODS for word in ("--method", name)]
    machine = ["--machine", "p3.16xlarge", "--nodes", "128"]
    commsched("plan", "bert-base", *machine, *methods, *plug_ins, "-o", plan)
    made = json.loads(commsched("show", plan, "--json", *plug_ins))
    assert made["ranks"] == 1024
    assert {launch["method"] for launch in made["launches"]} <= set(METHODS)
    found = json.loads(commsched("simulate", plan, "--json", *plug_ins))
    assert found["iteration_median_seconds"] == pytest.approx(made["iteration_median_seconds"])
