"""`commsched sweep`: rows say what other commands say, and nothing is lost when a study stops."""

import csv
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

import commsched as cs
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.change import changed
from commsched.machine.model import resized
from commsched.net import file as net_file
from commsched.planner.request import Request
from commsched.planner.search.bound import lower_bound
from commsched.planner.search.problem import BASELINES, Problem
from commsched.plot.study import StudyPicture, draw
from commsched.study import pricing, rows
from commsched.study.cells import Cell, product_of, read
from commsched.study.pricing import row
from commsched.study.run import planned
from commsched.study.workers import processes
from tests.support.jobs import ROOT
from tests.support.rank_server import on_ranks

WORDS = ["--net", "lstm,vgg16", "--machine", "p3.16xlarge", "--nodes", "2,3", "--planner"]
STUDY = [*WORDS, "ddp-25mb,per-tensor", "--bandwidth", "10gbit,100gbit"]


def swept(path, *words):
    assert main(["sweep", *(words or STUDY), "-o", str(path)]) == 0
    return rows.read(path)


def test_a_file_and_options_name_the_same_cells(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        'net = ["lstm", "vgg16"]\nmachine = "p3.16xlarge"\nplanner = "ddp-25mb"\n'
        '[[study]]\nnodes = [2, 3]\n[[study]]\nranks = 16\nallow = ["-", ["fp16", "topk:1%"]]\n'
    )
    base = {"machine": "p3.16xlarge", "planner": "ddp-25mb"}
    expected = [Cell(net=net, nodes=n, **base) for net in ("lstm", "vgg16") for n in ("2", "3")]
    for net in ("lstm", "vgg16"):
        expected += [
            Cell(net=net, ranks="16", allow=allow, **base) for allow in ("-", "fp16 topk:1%")
        ]
    assert read(path) == expected
    assert product_of({**base, "net": ["lstm", "vgg16"], "nodes": ["2", "3"]}, "") == expected[:4]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"nett": "lstm"}, "unknown key 'nett'.*nearest: 'net'"),
        ({"machine": "p3"}, "net is missing"),
        ({"net": []}, "the list is empty"),
        ({"net": "lstmm", "machine": "summit"}, "no shipped net named 'lstmm'.*nearest: 'lstm'"),
        ({"net": "lstm", "machine": "sumit"}, "nearest: 'summit'"),
        ({"net": "lstm", "machine": "summit", "planner": "ddp"}, "no planner named 'ddp'"),
        ({"net": "lstm", "machine": "summit", "allow": "fp17"}, "nearest: 'fp16'"),
        ({"net": "lstm", "machine": "summit", "strategy": "sinc"}, "nearest: 'sync'"),
        ({"net": "lstm", "machine": "summit", "strategy": "sync x"}, "expected NAME KEY=VALUE"),
        ({"net": "lstm", "machine": "summit", "ranks": "x"}, "whole numbers"),
        ({"net": "lstm", "machine": "summit", "bandwidth": "10"}, "bandwidth is a rate"),
        ({"net": "lstm", "machine": "summit", "bandwidth": "1e300gbit"}, "more than 0 GB/s and at"),
        ({"net": "lstm", "machine": "summit", "nodes": 1, "ranks": 1}, "say the same"),
        ({"net": "lstm", "machine": "summit", "between": "1gbit", "bandwidth": "-"}, "mean the"),
        ({"net": "lstm", "machine": "summit", "simulate": 1}, "must be true or false"),
    ],
)
def test_bad_lists_are_refused_in_a_sentence(given, sentence):
    with pytest.raises(CommschedError, match=f"study: .*{sentence}"):
        product_of(given, "study")


@pytest.mark.by_day(0)
def test_a_row_of_a_density_is_what_plan_says_of_it(tmp_path):
    words = ["--machine", "p3.16xlarge", "--nodes", "2", "--planner", "per-tensor"]
    dense, sparse = swept(
        tmp_path / "s.csv", "--net", "lstm", *words, "--density", "1,1%", "--method", "zen"
    )
    assert (dense["density"], sparse["density"]) == (1.0, 0.01)
    assert sparse["step_seconds"] < dense["step_seconds"]
    out = str(tmp_path / "plan.json")
    words += ["--density", "1%", "--method", "zen", "-o", out]
    assert main(["plan", "lstm", *words]) == 0
    simulated = cs.Plan.read(out).simulate()
    assert sparse["step_seconds"] == pytest.approx(simulated.iteration, rel=1e-9)
    net = cs.Net("lstm", density="1%").model
    assert {one.sparsity.density for layer in net.layers for one in layer.tensors} == {0.01}
    draw([dense, sparse], tmp_path / "s.svg", StudyPicture(x="density"))


def test_a_row_has_a_scale_in_percent_and_the_rate_of_a_port(tmp_path):
    """Also of a machine with more ports than ranks."""
    words = ["--net", "lstm", "--machine", "h100-8x400", "--nodes", "2", "--planner", "ddp-25mb"]
    whole, half = swept(tmp_path / "s.csv", *words, "--scale", "1,50%", "--set", "lanes=4")
    assert (half["scale"], whole["scale"]) == (0.5, 1.0)
    assert half["port_bits_per_second"] == whole["port_bits_per_second"] == 400e9


@pytest.mark.parametrize("planner", ["ddp-25mb"])
def test_a_simulated_row_is_what_plan_and_simulate_say(planner, tmp_path):
    path = tmp_path / "sweep.csv"
    words = ["--net", "resnet32", "--machine", "localhost", "--ranks", "2", "--planner", planner]
    (found,) = swept(path, *words, "--simulate")
    plan = cs.Plan.best("resnet32", cs.Machine("localhost", lanes=2), planner=planner)
    data = plan.simulate().data
    assert found["source"] == "simulated"
    assert found["step_seconds"] == pytest.approx(data["iteration_median_seconds"], rel=1e-9)
    assert found["exposed_seconds"] == pytest.approx(data["exposed_median_seconds"], rel=1e-9)
    assert found["sent_bytes_per_rank"] == pytest.approx(data["sent_median_bytes"], rel=1e-9)
    assert found["memory_bytes_per_rank"] == data["memory_bytes"]["total"]
    assert found["launches"] == len(plan.model.launches)
    assert found["bound_seconds"] <= found["step_seconds"]


def test_a_row_is_the_mean_of_a_whole_training(tmp_path):
    """Of merges that lie further apart than 10 steps, too, and of warm-up and all that follows."""
    words = ["--net", "resnet32", "--machine", "p3.16xlarge", "--nodes", "2", "--strategy"]
    asked = "shadow every=4,shadow every=16,daso,daso warmup=0 cooldown=0,daso warmup=86"
    found = {one["strategy"]: one for one in swept(tmp_path / "s.csv", *words, asked)}
    sent = [found[f"shadow every={every}"]["sent_bytes_per_rank"] * every for every in (4, 16)]
    assert sent[1] == pytest.approx(sent[0])
    whole, later, first = (found[name]["step_seconds"] for name in asked.split(",")[2:])
    share = 8 / 90  # of warm-up and cool-down
    assert whole == pytest.approx(share * first + (1 - share) * later)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("planner", ["ddp-25mb", "bytescheduler", "all-topk"])
def test_a_priced_row_is_near_the_simulated_one(planner):
    cell = Cell(
        net="resnet32", machine="p3.16xlarge", nodes="3", planner=planner, allow="topk",
        simulate=True,
    )  # fmt: skip
    simulated, priced = row(cell), row(replace(cell, simulate=False))
    assert simulated["priced_step_seconds"] == priced["step_seconds"]
    near = (0.05 if planner == "all-topk" else 0.01) * simulated["step_seconds"]
    for name in ("step_seconds", "exposed_seconds"):
        assert priced[name] == pytest.approx(simulated[name], abs=near)
    assert priced["sent_bytes_per_rank"] == pytest.approx(simulated["sent_bytes_per_rank"], 1e-4)
    assert priced["memory_bytes_per_rank"] == simulated["memory_bytes_per_rank"]


def test_rows_of_machines_that_are_prepared_together_are_those_of_each_alone():
    cells = product_of(
        {
            "net": ["lstm", "resnet32"],
            "machine": ["p3.16xlarge", "summit"],
            "nodes": 2,
            "planner": ["ddp-25mb", "bytescheduler"],
            "bandwidth": ["10gbit", "25gbit", "400gbit"],
        },
        "",
    )
    pricing._known_of.cache_clear()
    alone = [row(cell) for cell in cells]
    pricing._known_of.cache_clear()
    together = [found for some in (cells[:9], cells[9:]) for found in planned(some)]
    assert together == alone
    assert all(one["status"] == "ok" for one in alone)


@pytest.mark.parametrize("name", ["ddp-25mb", "bytescheduler", "hipress"])
def test_the_clocks_of_a_candidate_end_with_its_iteration(name):
    machine = resized(machine_file.load("p3.16xlarge"), 2)
    problem = Problem(Request(net=net_file.load("resnet32"), machine=machine, lossy=("fp16",)))
    candidate = problem.within(BASELINES[name](problem))
    step, exposed = problem.evaluator.exposed(candidate)
    assert step == pytest.approx(problem.evaluator.one(candidate), rel=1e-12)
    own = problem.clock.floor(problem.request.net.numel)
    assert 0 <= exposed <= step - own + 1e-12


def test_the_bound_by_ports_is_a_bound_too():
    machine = resized(machine_file.load("p3.16xlarge"), 2)
    problem = Problem(Request(net=net_file.load("vgg16"), machine=machine))
    least = problem.clock.floor(problem.request.net.numel)
    assert least <= lower_bound(problem, by_ports=True) <= lower_bound(problem) * (1 + 1e-9)


def test_a_study_goes_on_where_it_stopped(tmp_path, capsys):
    path = tmp_path / "sweep.csv"
    whole = swept(path)
    assert len(whole) == 16
    assert len({one["cell"] for one in whole}) == 16
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:6]) + lines[6][:-9])  # torn: a row without its end
    capsys.readouterr()
    assert swept(path) == whole
    assert "16 rows: 5 were there, 11 made" in capsys.readouterr().out
    assert path.read_bytes() == text
    assert swept(path) == whole
    assert "16 rows: 16 were there, 0 made\n" in capsys.readouterr().out


def test_a_row_without_a_plan_keeps_its_sentence(tmp_path, capsys):
    path = tmp_path / "sweep.csv"
    words = ["--net", "lstm", "--machine", "p3.16xlarge", "--ranks", "12,16", "--planner"]
    found = swept(path, *words, "all-topk,ddp-25mb", "--strategy", "sync,daso gs=x")
    failed = [one["sentence"] for one in found if one["status"] == "failed"]
    assert len(found) == 8
    assert sum("12 ranks do not fill nodes of 8" in one and "8 or 16" in one for one in failed) == 4
    assert sum("--allow topk" in one for one in failed) == 1
    assert sum("gs" in one and "daso" in one for one in failed) == 2
    assert [one["step_seconds"] > 0 for one in found if one["status"] == "ok"] == [True]
    assert "7 have no plan, see column sentence" in capsys.readouterr().out


def test_a_planner_that_a_strategy_does_not_ask_is_refused_as_plan_refuses_it():
    words = {"strategy": "zero1", "planner": "ddp-25mb"}
    cell = Cell(net="resnet32", machine="p3.16xlarge", nodes="1", **words)
    said = "planner is not for strategy 'zero1', which plans by itself; leave it out"
    assert row(cell)["sentence"] == f"--{said}"
    with pytest.raises(CommschedError, match=said):
        cs.Plan.best("resnet32", cs.Machine("p3.16xlarge", nodes=1), **words)
    assert row(replace(cell, planner="best"))["status"] == "ok"


def test_other_processes_and_ranks_make_the_same_rows(tmp_path):
    def sorted_lines(path):
        return sorted(path.read_text().splitlines())

    here, beside, ranks = (tmp_path / f"{name}.csv" for name in ("here", "beside", "ranks"))
    swept(here)
    swept(beside, *STUDY, "--jobs", "2")
    ended = on_ranks(3, "sweep", *STUDY, "-o", str(ranks))
    assert ended.status == 0, ended.output
    assert sorted_lines(here) == sorted_lines(beside) == sorted_lines(ranks)


@pytest.mark.by_day(0)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_study_leaves_a_file_to_go_on_with_and_no_orphans(how, tmp_path):
    path = tmp_path / "sweep.csv"
    words = ["--net", "resnet32", "--machine", "summit", "--nodes", "2", "--planner", "hipress"]
    rates = ",".join(f"{rate}gbit" for rate in range(1, 1000))
    words += ["--bandwidth", rates, "--jobs", "2", "-o", str(path)]
    command = [sys.executable, "-m", "commsched", "sweep", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while not path.exists() or path.read_bytes().count(b"\n") < 3:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(how)
        said = process.communicate(timeout=60)[1]  # waits for all that hold stderr
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    text = path.read_text()
    told = (
        f"commsched: interrupted; {path} has {text.count(chr(10)) - 1} of 999 rows, and can go on\n"
    )
    assert said == (told if how == signal.SIGINT else "")
    assert main(["sweep", *words[:-6], "--bandwidth", "1gbit,2gbit,3gbit", "-o", str(path)]) == 0
    assert path.read_text().startswith(text[: text.rfind("\n") + 1])
    found = rows.read(path)
    assert len({one["cell"] for one in found}) == len(found)


def test_processes_plan_for_the_first_process_of_a_container_too(monkeypatch):
    for name in ("getpid", "getppid"):
        monkeypatch.setattr(f"os.{name}", lambda: 1)
    with processes(1) as executor:
        assert executor.submit(abs, -2).result(60) == 2


def test_a_process_that_is_killed_ends_the_study_in_a_sentence():
    with pytest.raises(CommschedError, match="the same command goes on"), processes(2) as executor:
        executor.submit(signal.raise_signal, signal.SIGKILL).result(60)


def test_python_makes_the_rows_of_the_command_and_draws_them(tmp_path):
    path = tmp_path / "sweep.csv"
    swept(path)
    lab = cs.Machine("p3.16xlarge", nodes=2)
    lists = {"planners": ["ddp-25mb", "per-tensor"], "between": ["10gbit", "100gbit"]}
    study = cs.sweep(["lstm", cs.Net("vgg16")], lab, **lists)
    columns = ("net", "ranks", "port_bits_per_second", "planner", "step_seconds", "methods")
    here, there = (
        {tuple(one[name] for name in columns) for one in some}
        for some in (study.rows, rows.read(path))
    )
    assert len(study.rows) == 8
    assert {type(one["ranks"]) for one in study.rows} == {int}
    assert here == {one for one in there if one[1] == 16}
    assert repr(study) == "<Study: 8 rows, 0 without a plan>"
    assert study._repr_html_().count("per-tensor") == 4
    assert study.plot(width=3.3)._repr_svg_().count(">per-tensor<") == 1  # in the legend
    again = cs.sweep("lstm", "p3.16xlarge", path=path, nodes=[2, 3], planners="ddp-25mb", jobs=2)
    assert repr(again) == f"<Study: 2 rows in {path}, 0 without a plan>"
    assert len(rows.read(path)) == 16 + 2


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_that_was_edited_since_the_last_study_is_read_anew(elsewhere, tmp_path):
    path, steps = tmp_path / "lab.json", []
    with processes(1) if elsewhere else nullcontext() as executor:
        for rate in (10, 100, 10):
            made = changed(machine_file.load("p3.16xlarge"), ["nodes=2", f"nic={rate} Gbit/s"])
            machine_file.write(path, made)
            study = cs.sweep("lstm", path, planners="ddp-25mb", executor=executor)
            steps.append(study.rows[0]["step_seconds"])
    assert steps[0] == steps[2] > steps[1]


def test_another_table_is_refused(tmp_path, capsys):
    path = tmp_path / "sweep.csv"
    path.write_text("a,b\n1,2\n")
    assert main(["sweep", *STUDY, "-o", str(path)]) == 2
    assert "not a table of this version's `commsched sweep`" in capsys.readouterr().err


def test_a_table_that_is_there_keeps_its_name(tmp_path):
    path = tmp_path / "table.tsv"
    path.touch()
    assert main(["sweep", *STUDY, "-o", str(path)]) == 0
    assert path.read_text().startswith("cell,net,")


def test_a_codec_is_allowed_though_not_every_method_of_a_sweep_uses_it(tmp_path):
    path = tmp_path / "table.csv"
    methods = ["--allow", "fp16", "--method", "ring+dense,ring+fp16"]
    assert main(["sweep", *STUDY, *methods, "-o", str(path)]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {row["method"] for row in rows} == {"ring+dense", "ring+fp16"}
    assert all(row["step_seconds"] for row in rows)


def test_a_table_of_any_name_is_not_its_own_picture(tmp_path, capsys):
    path = tmp_path / "table.svg"
    path.touch()
    assert main(["sweep", *STUDY, "-o", str(path), "--figure", str(path)]) == 2
    assert "is written by -o; give --figure another file" in capsys.readouterr().err
    assert not path.read_text()


@pytest.mark.parametrize("name", ["sweep.svg", "sweep.txt", "sweep"])
def test_a_table_is_csv_or_parquet_and_never_its_own_picture(name, tmp_path, capsys):
    path = str(tmp_path / name)
    assert main(["sweep", *STUDY, "-o", path, "--figure", str(tmp_path / "other.svg")]) == 2
    assert "tables; use .csv or .parquet" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ['{"a": 1}', '{\n"a": 1\n}', ""])
def test_a_file_that_is_no_table_stays_as_it_is(text, tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    assert main(["sweep", *STUDY, "-o", str(path)]) == (2 if text else 0)
    assert (path.read_text() == text) == bool(text)
