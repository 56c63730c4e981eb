"""What every command shares: one line of error, exit statuses, JSON."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from pkgutil import iter_modules

import pytest

import commsched.net.file
from commsched.cli import commands
from commsched.cli.commands.show import differences
from commsched.cli.main import main
from commsched.net.generate.transformer import gpt
from commsched.plan import file as plan_file
from commsched.shipped import names
from commsched.timeline import file as timeline_file
from commsched.timeline.header import RunHeader
from commsched.timeline.model import Timeline
from tests.support.jobs import Job
from tests.support.small_plans import graph, machine, plan

COMMANDS = [module.name for module in iter_modules(commands.__path__)]


def test_an_error_is_one_line_and_exit_2(tmp_path, capsys):
    output = str(tmp_path / "net.json")
    assert main(["models", "--transformer", "layers=2,hidden=6,heads=4", "-o", output]) == 2
    shown = capsys.readouterr()
    assert shown.err == "commsched: --transformer: hidden=6 must be a multiple of heads=4\n"
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_fail_alike_say_it_once():
    words = [sys.executable, "-m", "commsched", "run", "no.json", "-o", "x.json"]
    with Job(3, words) as job:
        done = job.wait(120)
    assert done.status == 2
    (said,) = [line for line in done.output.splitlines() if line.startswith("commsched: ")]
    assert "no.json: cannot be read" in said


@pytest.mark.by_day(1)
@pytest.mark.parametrize(
    ("words", "told_once"),
    [
        (["list", "libraries"], "  nccl"),
        (["bench", "codecs", "--codec", "fp16", "--numel", "1000", "--repeats", "2"], "fp16"),
    ],
)
def test_a_command_of_one_process_is_done_by_the_first_rank_alone(words, told_once):
    with Job(3, [sys.executable, "-m", "commsched", *words]) as job:
        done = job.wait(120)
    assert done.status == 0
    first, *told = done.output.splitlines()
    assert first == f"commsched: '{words[0]}' needs one process: the first of 3 works alone"
    assert sum(line.startswith(told_once) for line in told) == 1


def test_a_transformer_is_the_formula_written_down(tmp_path, capsys):
    path = tmp_path / "small.json"
    sizes = "layers=2,hidden=64,heads=4,sequence=16,vocabulary=100,batch=3"
    assert main(["models", "--transformer", sizes, "-o", str(path)]) == 0
    said = f"small: 17 layers, 0.1 M parameters\nwritten to {path}\n"
    assert capsys.readouterr().out == said
    want = gpt("small", layers=2, hidden=64, heads=4, sequence=16, vocabulary=100, batch=3)
    assert commsched.net.file.load(path) == want


def test_models_lists_all_that_is_shipped(capsys):
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    for kind in ("nets", "machines"):
        assert names(kind)
        assert [item["name"] for item in listed[kind]] == names(kind)
    assert main(["models"]) == 0
    table = capsys.readouterr().out
    assert all(name in table for name in names("nets") + names("machines"))


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that ends with 2; nothing else is printed."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err.removeprefix("commsched: ").rstrip("\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "\nexample" in capsys.readouterr().out


def test_a_wrong_option_is_one_sentence_that_names_the_help(capsys):
    want = "the following arguments are required: --machine; see 'commsched price --help'"
    assert refusal(["price", "1"], capsys) == want
    words = ["price", "1", "--machine", "summit", "--nodes", "2.5"]
    assert refusal(words, capsys) == "--nodes is a whole number, such as 4; got '2.5'"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--bucket", "0"], "--bucket must be finite and more than 0 MB; got 0"),
        (["--bucket", "nan"], "--bucket is a size, such as 25MB; got 'nan'"),
        (["--seed", "-1"], "--seed must be from 0 to 4611686018427387904, got -1"),
        (["--scale", "-1"], "--scale must be finite and more than 0; got -1"),
    ],
)
def test_a_plan_that_cannot_be_meant_is_refused(options, complaint, tmp_path, capsys):
    output = ["-o", str(tmp_path / "plan.json")]
    words = ["plan", "lstm", "--machine", "localhost", *output, *options]
    assert refusal(words, capsys) == complaint
    assert list(tmp_path.iterdir()) == []


def test_a_demo_of_an_unknown_net_measures_nothing(tmp_path, capsys):
    complaint = refusal(["demo", "--net", "vgg17", "-o", str(tmp_path / "demo")], capsys)
    assert complaint.startswith("no shipped net named 'vgg17'")
    assert list(tmp_path.iterdir()) == []


def written(path: Path, **changes: object) -> str:
    plan_file.write(path, plan(graph([500] * 2), machine(1, 2), ["ring+dense"], **changes))
    return str(path)


def test_a_simulation_writes_some_rank_and_replays_its_own_plan_only(tmp_path, capsys):
    made, other = written(tmp_path / "a.json"), written(tmp_path / "b.json", seed=1)
    timeline, output = str(tmp_path / "t.json"), str(tmp_path / "u.json")
    assert main(["simulate", other, "-o", timeline]) == 0
    capsys.readouterr()
    words = ["simulate", made, "-o", output]
    assert refusal([*words, "--ranks", "0"], capsys) == "--ranks must be at least 1, got 0"
    complaint = refusal([*words, "--replay", timeline], capsys)
    assert complaint.startswith(f"{timeline}: a run of plan ")
    assert not Path(output).exists()
    assert main(["simulate", other, "-o", output, "--replay", timeline]) == 0


@pytest.mark.parametrize("planner", ["ddp-25mb", "greedy"])
def test_a_planner_with_buckets_of_its_own_says_that_it_ignores_a_size(planner, tmp_path, capsys):
    words = ["plan", "resnet32", "--machine", "localhost", "--planner", planner]

    def planned(*more):
        path = tmp_path / "plan.json"
        assert main([*words, *more, "-o", str(path)]) in (0, None)
        return plan_file.read(path).launches, "--bucket changes nothing" in capsys.readouterr().err

    own, told = planned()
    given, then_told = planned("--bucket", "0.1MB")
    assert not told
    assert then_told == (given == own)
    assert then_told == (planner == "ddp-25mb")


def test_a_plan_is_shown_to_scripts_in_numbers(tmp_path, capsys):
    assert main(["show", written(tmp_path / "a.json"), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["launches"]
    assert (first["launch"], first["after"], first["method"]) == ("b0", "l1", "ring+dense")
    assert first["tensors"] == 1
    assert first["bytes"] == second["bytes"] == 2000


@pytest.mark.parametrize(
    ("changes", "there"),
    [
        ({"every": 2}, "b0 by ring+dense, every 2 steps"),
        ({"since": 3}, "b0 by ring+dense, from step 3 on"),
        ({"among": "node"}, "b0 by ring+dense among ranks of a node"),
        ({"purpose": "gather"}, "b0 by ring+dense, gather"),
        ({"stop": 100}, "b0 by ring+dense, elements 0 to 99"),
    ],
)
def test_a_difference_is_all_that_tells_the_launches_of_a_tensor(changes, there):
    one = plan(graph([500] * 2), machine(1, 2), ["ring+dense"])
    first, second = one.launches
    tensor = first.pieces[0].tensor
    if "stop" in changes:
        changes = {"pieces": (first.pieces[0]._replace(**changes),)}
    other = replace(one, launches=(replace(first, **changes), second))
    (found,) = differences(one, other)
    assert found == {"tensor": tensor, "here": "b0 by ring+dense", "there": there}
    twice = replace(one, launches=(*one.launches, replace(first, name="more")))
    assert differences(one, twice)[0]["there"] == "b0 by ring+dense; more by ring+dense"
    assert differences(twice, twice) == []


def test_a_timeline_without_spans_is_no_traceback(tmp_path, capsys):
    path = tmp_path / "t.json"
    empty = Timeline.of([], header=RunHeader(), plan_hash="0" * 64, ranks=2)
    timeline_file.write(path, empty)
    assert refusal(["show", str(path)], capsys) == (
        "the measured timeline has no spans, so it cannot be summarised"
    )


def test_a_prediction_of_sparse_sums_is_json(tmp_path, capsys):
    """The bytes of sparse sums are NumPy numbers, whose comparison is no JSON value."""
    made = str(tmp_path / "plan.json")
    assert main(["plan", "nmt", "--machine", "comet", "--planner", "all-coo", "-o", made]) == 0
    capsys.readouterr()
    assert main(["simulate", made, "--steps", "2", "--json"]) == 0
    assert isinstance(json.loads(capsys.readouterr().out)["fits"], bool)


def test_a_file_of_another_kind_is_called_what_it_is(tmp_path, capsys):
    made = plan(graph([100]), machine(1, 2), ["ring+dense"])
    plan_file.write(tmp_path / "p.json", made)
    assert main(["simulate", str(tmp_path / "p.json"), "-o", str(tmp_path / "t.json")]) == 0
    capsys.readouterr()
    for words, said in (
        (["simulate", "t.json"], "t.json: this is a timeline file, and a plan is expected"),
        (["plot", "p.json", "-o", "x.svg"], "p.json: this is a plan file, and a timeline is"),
        (["show", "--bogus", "p.json"], "'--bogus': not understood; see 'commsched show --help'"),
    ):
        line = [str(tmp_path / word) if word.endswith("json") else word for word in words]
        line = [str(tmp_path / word) if word.endswith("svg") else word for word in line]
        assert said in refusal(line, capsys)
