"""The Python surface: it says what the commands say, and shows itself in a line."""

import json
import subprocess
import sys

import pytest

import commsched as cs
from commsched.cli.main import main
from commsched.exchange.registry import find_method
from commsched.net import file as net_file
from commsched.net.graph import Layer, Net

MACHINE = {"nodes": 4, "nic": "25 Gbit/s"}


@pytest.fixture(scope="module")
def plan():
    return cs.Plan.best("lstm", cs.Machine("p3.16xlarge", **MACHINE), method="ring+dense")


def test_a_plan_is_the_one_of_the_command(plan, tmp_path, capsys):
    words = ["--machine", "p3.16xlarge", "--nodes", "4", "--set", "nic=25 Gbit/s"]
    path = tmp_path / "plan.json"
    assert main(["plan", "lstm", *words, "--method", "ring+dense", "-o", str(path)]) == 0
    assert cs.Plan.read(path).model.hash == plan.model.hash
    capsys.readouterr()
    assert main(["simulate", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert plan.simulate().iteration == told["iteration_median_seconds"]
    assert plan.prediction.exposed == told["exposed_median_seconds"]


def test_only_the_methods_asked_for_are_used(plan):
    assert plan.methods == ("ring+dense",)
    lossy = cs.Plan.best("lstm", "localhost", method=["doubling+fp16", "ring+fp16"])
    assert set(lossy.methods) <= {"doubling+fp16", "ring+fp16"}
    assert not any(find_method(name).lossless for name in lossy.methods)


def test_a_method_that_cannot_sum_is_refused_with_the_nearest():
    with pytest.raises(cs.CommschedError, match=r"method native.fp16 cannot sum.*nearest"):
        cs.Plan.best("lstm", "localhost", method="native+fp16")


def test_quantities_are_written_as_on_the_command_line(plan):
    same = cs.Plan.best(
        "lstm", cs.Machine("p3.16xlarge", **MACHINE), method="ring+dense", memory="16GB"
    )
    assert same.model.hash == plan.model.hash
    with pytest.raises(cs.CommschedError, match=r"memory limit of 1 kB per rank cannot hold"):
        cs.Plan.best("lstm", "localhost", method="ring+dense", memory="1kB")
    with pytest.raises(cs.CommschedError, match=r"no option 'memroy'.*nearest: 'memory'"):
        cs.Plan.best("lstm", "localhost", memroy="16GB")


@pytest.mark.parametrize("seed", [-1, "a", 1.5, True, 2**70])
def test_a_seed_that_no_plan_file_holds_is_refused(seed):
    with pytest.raises(cs.CommschedError, match="seed must be a whole number from 0 to"):
        cs.Plan.best("lstm", "localhost", method="ring+dense", seed=seed)


def test_quantities_of_nets_are_texts_or_numbers():
    net = cs.Net("lstm", scale="50%", stretch="2", density="1%").model
    assert net == cs.Net("lstm", scale=0.5, stretch=2, density=0.01).model


def test_methods_may_be_left_out_as_a_list_or_a_text(plan):
    some = ["ring+dense", "tree+dense"]
    found = [
        cs.Plan.best("lstm", "localhost", method=some, without=without)
        for without in (some[1:], some[1], frozenset(some[1:]))
    ]
    assert {one.methods for one in found} == {("ring+dense",)}
    assert len({one.model.hash for one in found}) == 1


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"memory": -1}, r"memory must be finite and more than 0 GB; got -1$"),
        ({"memory": [1]}, r"memory is a size, such as 25MB; got '\[1\]'$"),
        ({"time_limit": -1.0}, r"time_limit must be finite and at least 0 s; got -1.0$"),
        ({"foo": 1}, r"a plan has no option 'foo'; known: strategy, [a-z_, ]*$"),
        ({"memory": 1e3}, r"; nearest: a limit of 0.162618272GB$"),
    ],
)
def test_wrong_options_of_a_plan_are_one_sentence(wrong, sentence):
    with pytest.raises(cs.CommschedError, match=sentence):
        cs.Plan.best("resnet32", "localhost", planner="ddp-25mb", **wrong)


@pytest.mark.parametrize("count", ["four", 2.5])
def test_counts_of_nodes_are_whole_numbers(count):
    with pytest.raises(cs.CommschedError, match=r"nodes is a whole number from 1 on, got "):
        cs.Machine("p3.16xlarge", nodes=count)


def test_patterns_force_all_tensors_that_they_name(tmp_path):
    path = tmp_path / "plan.json"
    words = ["--machine", "localhost", "--method", "ring+dense", "--force", "*bias*=tree+dense"]
    assert main(["plan", "resnet32", *words, "-o", str(path)]) == 0
    launches = cs.Plan.read(path).model.launches
    forced = {launch.pieces[0].tensor for launch in launches if launch.method == "tree+dense"}
    assert forced == {name for name in cs.Net("resnet32").model.tensors if "bias" in name}
    assert forced


def test_everything_shows_itself_in_a_line(plan):
    shown = [plan, plan.prediction, cs.Net("lstm"), cs.Machine("localhost")]
    assert all(len(repr(one)) < 200 and "\n" not in repr(one) for one in shown)
    assert all(one._repr_html_().startswith("<pre>") for one in shown)
    assert plan.prediction.plot()._repr_svg_().lstrip().startswith("<?xml")


def test_plans_are_compared_with_the_first(plan, tmp_path):
    plan.write(tmp_path / "plan.json")
    found = cs.compare(plan, tmp_path / "plan.json", plan.prediction)
    lines = str(found).splitlines()
    assert len(lines) == 4
    assert all(line.split()[4] == "1.000" for line in lines[1:])
    assert [one["plan"] for one in found.data] == [plan.model.hash] * 3


def test_plans_that_take_no_time_are_compared(tmp_path):
    net = Net(name="idle", layers=(Layer(name="a", forward=0.0, backward=0.0),))
    net_file.write(tmp_path / "net.json", net)
    idle = cs.Plan.best(tmp_path / "net.json", cs.Machine("localhost", lanes=1))
    assert idle.prediction.iteration == 0.0
    lines = str(cs.compare(idle, idle)).splitlines()
    assert [line.split()[4] for line in lines[1:]] == ["-", "-"]


def test_files_of_plans_are_compared(plan, tmp_path):
    path = tmp_path / "plan.json"
    plan.write(path)
    want = str(cs.compare(plan, plan))
    assert str(cs.compare(str(path), path)) == want == str(cs.compare(plan.simulate(), path))


def test_a_sweep_keeps_nets_and_machines_of_one_name(tmp_path):
    nets = [cs.Net("lstm"), cs.Net("lstm", density="1%")]
    machines = [cs.Machine("p3.16xlarge", nodes=nodes) for nodes in (2, 4)]
    found = cs.sweep(nets, machines, planners=["ddp-25mb"])
    assert len(found.rows) == 4
    assert sorted(row["nodes"] for row in found.rows) == [2, 2, 4, 4]


def test_a_prediction_is_compared_with_a_measured_timeline(plan, tmp_path):
    plan.prediction.write(tmp_path / "a.json")
    same = cs.compare(plan.prediction, tmp_path / "a.json")
    pair = same.data["iteration_median"]
    near = pytest.approx(plan.prediction.iteration, abs=1e-9)  # files hold whole nanoseconds
    assert pair["predicted_seconds"] == near
    assert pair["measured_seconds"] == near


def test_files_of_two_predictions_say_which_plan_is_faster(plan, tmp_path, capsys):
    lab = cs.Machine("p3.16xlarge", **MACHINE)
    slow = cs.Plan.best("lstm", lab, method="doubling+dense").prediction
    plan.prediction.write(one := tmp_path / "a.json")
    slow.write(other := tmp_path / "b.json")
    found = cs.compare(one, other)
    assert main(["compare", str(one), str(other)]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert str(cs.compare(one, slow)) == str(found)


def test_importing_is_quick_and_errors_are_value_errors():
    code = "import sys, commsched; print(len([m for m in sys.modules if 'numpy' in m]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    with pytest.raises(ValueError, match="no shipped net named"):
        cs.Net("resnet-50")


@pytest.mark.by_day(0)
def test_the_break_even_lies_between_rates_that_pay_and_rates_that_do_not():
    lab = cs.Machine("p3.16xlarge", nodes=2, lanes=1, nic="10 Gbit/s")
    few = ["ring+dense", "ring+fp16"]
    found = cs.break_even("alexnet", lab, allow="fp16", method=few, gain="5%").data
    answer, rows = found["port_bits_per_second"], found["rows"]
    below = [row for row in rows if row["port_bits_per_second"] < answer]
    above = [row for row in rows if row["port_bits_per_second"] > answer]
    assert max(row["port_bits_per_second"] for row in below) * 1.05 > answer
    assert min(row["port_bits_per_second"] for row in above) < answer * 1.05
    assert all(row["saved_share"] > 0.05 for row in below)
    assert all(row["saved_share"] <= 0.05 for row in above)
    for column in ("lossless_seconds", "allowed_seconds"):  # no faster port has a slower plan
        by_rate = [row[column] for row in rows]
        assert by_rate == sorted(by_rate, reverse=True)
    with pytest.raises(cs.CommschedError, match="several nodes"):
        cs.break_even("lstm", cs.Machine("p3.16xlarge", nodes=1), allow="fp16")
    with pytest.raises(cs.CommschedError, match="needs allow"):
        cs.break_even("lstm", lab, allow="")


PLUGIN = '''
"""A ring under another name."""
from commsched.collectives.ring import ring
from commsched.schedule.registry import COLLECTIVES
import dataclasses

@COLLECTIVES.add("other-ring")
def other_ring(group):
    """A ring. Source: a test."""
    return dataclasses.replace(ring(group), name="other-ring")
'''


@pytest.mark.by_day(0)
def test_a_plug_in_of_the_users_is_planned_and_simulated(tmp_path):
    file, made = tmp_path / "other.py", tmp_path / "plan.json"
    file.write_text(PLUGIN)
    run = [sys.executable, "-m", "commsched"]
    words = ["plan", "lstm", "--machine", "localhost", "--method", "other-ring+dense", "-o", made]
    subprocess.run([*run, *words, "--plugin", file], check=True, capture_output=True)
    told = subprocess.run(
        [*run, "--plugin", file, "simulate", made, "--json"], check=True, capture_output=True
    )
    assert json.loads(told.stdout)["iteration_median_seconds"] > 0
    without = subprocess.run([*run, "simulate", made], capture_output=True, text=True, check=False)
    assert without.returncode == 2
    assert "no collective named 'other-ring'" in without.stderr
    file.write_text("1/0")
    broken = subprocess.run(
        [*run, "simulate", made, "--plugin", file], capture_output=True, text=True, check=False
    )
    assert "cannot be imported: ZeroDivisionError" in broken.stderr
    assert broken.returncode == 2


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda plan: cs.Plan.best("lstm", "localhost", planner=3), "no planner named '3'"),
        (lambda plan: cs.Plan.best("lstm", "localhost", allow=3), "a text or a list of texts"),
        (lambda plan: cs.compare(plan, 3), "plans, predictions and files, got 3"),
        (lambda plan: plan.simulate(steps="x"), "a whole number, at least 2, got 'x'"),
        (lambda plan: plan.prediction.timeline(-1), "ranks must be a whole number, at least 1"),
        (lambda plan: plan.prediction.write("x.json", ranks=1.5), "at least 1, got 1.5"),
        (lambda plan: cs.Net("lstm", scale=None), "scale is a number, such as 0.5; got 'None'"),
        (lambda plan: cs.Net("lstm", stretch="-1"), "stretch must be finite and more than 0"),
        (lambda plan: cs.Plan.best("lstm", "localhost", allow=[1]), r"list of texts, got \[1\]"),
        (lambda plan: cs.Plan.best("lstm", "localhost", without=3), "a list of texts, got 3"),
        (lambda plan: cs.Plan.best("lstm", "localhost", strategy=None), "strategy is a text, got"),
        (lambda plan: cs.break_even("lstm", "localhost", allow="fp16", gain="5"), "gain must be"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(plan, call, sentence):
    with pytest.raises(cs.CommschedError, match=sentence):
        call(plan)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda plan: cs.Machine("summit", nic=25), "nic=25: nic is a rate"),
        (lambda plan: cs.Plan.best("lstm", "localhost", allow="fp61"), "allow fp61: no codec"),
        (lambda plan: cs.Plan.best("lstm", "localhost", compute="x"), "compute must be one of"),
        (
            lambda plan: cs.Plan.best("lstm", "localhost", strategy="zero1", method="ring+dense"),
            "use allow=CODEC, and param gather=CODEC",
        ),
        (lambda plan: cs.break_even("lstm", "localhost", allow=""), "break_even needs allow:"),
        (lambda plan: cs.sweep("lstm", "localhost", jobs=0), "jobs must be at least 1"),
        (lambda plan: plan.simulate().plot("x.png", height=1), "fewer ranks or lanes"),
        (lambda plan: plan.simulate().plot("x.png", width="1mm"), "width must be at least 1 in"),
        (lambda plan: plan.simulate().plot("x.png", wdth=3), "no option 'wdth'.*nearest: 'width'"),
        (
            lambda plan: cs.Plan.read("lstm"),
            "first: commsched plan lstm --machine M -o plan.json",  # to type in a shell
        ),
    ],
)
def test_an_error_speaks_of_arguments_not_of_options(plan, call, said):
    with pytest.raises(cs.CommschedError, match=f"^(?!--).*{said}") as found:
        call(plan)
    assert "--" not in str(found.value).replace("--machine M", "")


def test_a_planner_of_a_plug_in_need_not_write_its_name(tmp_path):
    planner = """
from dataclasses import replace
from commsched.planner.planners.greedy import greedy
from commsched.planner.registry import PLANNERS

@PLANNERS.add("nameless")
def nameless(request):
    return replace(greedy(request), planner="")
"""
    (tmp_path / "nameless.py").write_text(planner)
    words = ["--plugin", str(tmp_path / "nameless.py"), "--planner", "nameless"]
    made = ["plan", "lstm", "--scale", "1%", "--machine", "summit", "--nodes", "2"]
    run = [sys.executable, "-m", "commsched", *made, *words, "-o", str(tmp_path / "plan.json")]
    subprocess.run(run, check=True, capture_output=True)
    assert cs.Plan.read(tmp_path / "plan.json").model.planner == ""
