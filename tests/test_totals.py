"""The numbers of a step: the same for any number of steps, in every command, file and page."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.machine import file as machine_file
from commsched.net import file as net_file
from commsched.plan import file as plan_file
from commsched.planner.method_schedule import scheduled
from commsched.planner.search.timing import iteration
from commsched.plot.html import page_data
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.simulate.report import lines, report
from commsched.simulate.step_count import STEPS
from commsched.timeline.compare import compare
from commsched.timeline.cycles import totals
from commsched.timeline.file import read, write
from commsched.timeline.header import Predicted, RunHeader
from commsched.timeline.model import Span, Timeline
from commsched.timeline.report import comparison_table
from commsched.timeline.totals import median
from tests.support.small_plans import (
    graph,
    machine,
    mixture,
    plan,
    shared,
    stage_params,
    strategy_plan,
)

CYCLES = {  # steps until the operations of a strategy repeat
    "daso": ({"warmup": 0, "cooldown": 0, "batches": 1000, "gs": 4, "wait": 1}, 4),
    "shadow": ({"every": 3, "lag": 2}, 3),
}
# Relative. daso and shadow merge nothing in their first steps; samo's stages settle in the second
# step. Under zero a gather can end at different times, and ranks drift apart by some nanoseconds a
# step until one waits for another.
SETTLES = {"daso": 1e-2, "shadow": 1e-3, "samo": 1e-3} | dict.fromkeys(
    ("zero1", "zero2", "zero3"), 1e-3
)
NUMBERS = ("iteration", "exposed", "hidden", "bubble", "sent")


def made(name, jitter=0.0):
    net, on = graph([3000, 40000, 200, 25000]), machine(2, 4, jitter=jitter)
    params = dict(CYCLES.get(name, ({}, 1))[0])
    params |= stage_params(name, 2)
    if "tensor" in STRATEGIES[name].parameters:
        net = shared(net, summed=840)
    if name == "expert":
        net, params = mixture(graph([3000, 40008, 200, 25008])), {"expert": 4}
    return strategy_plan(net, on, name, **params)


def numbers(found):
    return [median(getattr(found, what)) for what in NUMBERS]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_an_iteration_that_is_not_the_plan_s_says_why(jitter, tmp_path, capsys):
    where = [str(tmp_path / f"{name}.json") for name in ("machine", "net", "plan")]
    machine_file.write(where[0], machine(2, 2, jitter=jitter))
    net_file.write(where[1], graph([3000, 40000]))
    assert main(["plan", where[1], "--machine", where[0], "-o", where[2]]) == 0
    assert ("(median of 9 steps with jitter)" in capsys.readouterr().out) == bool(jitter)
    of_plan = plan_file.read(where[2])
    usual, more = (report(simulate(of_plan, steps + 1)) for steps in (STEPS, 3 * STEPS))
    assert usual["iteration_median_seconds"] == pytest.approx(of_plan.iteration, rel=1e-9)
    assert usual["plan_iteration_seconds"] is None
    assert more["plan_iteration_seconds"] == (of_plan.iteration if jitter else None)
    assert any("is the median of 9 steps" in line for line in lines(more)) == bool(jitter)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in CYCLES])
def test_without_jitter_every_counted_step_is_like_the_others(name):
    of = [simulate(made(name), steps + 1) for steps in (2, 3, 10)]
    for other in of[1:]:
        assert other.totals.iteration[0] == pytest.approx(of[0].totals.iteration[0], rel=1e-9)
        rel = SETTLES.get(name, 1e-9)
        assert numbers(other.totals) == pytest.approx(numbers(of[0].totals), rel=rel)
    assert np.ptp(of[-1].totals.iteration) <= 1e-9 * of[-1].totals.iteration[0]
    assert [found.totals.counted for found in of] == [1, 2, 9]


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_counts_as_a_whole_however_many_there_are(name):
    length = CYCLES[name][1]
    few, many = (simulate(made(name), 2 + n * length).totals for n in (4, 7))
    assert few.cycle == many.cycle == length
    assert numbers(many) == pytest.approx(numbers(few), rel=1e-9)
    starts = simulate(made(name), 2 + 7 * length).starts
    first, stop = 3 * length, 7 * length
    assert median(many.iteration) == pytest.approx(
        (starts[stop].max() - starts[first].max()) / (stop - first), rel=1e-9
    )
    assert "cycles of" in few.statistic


@pytest.mark.parametrize("run", [6, 7])
def test_a_run_of_fewer_steps_is_compared_on_the_same_steps(run):
    of = scheduled(made("sync"), {2: "ring+fp16"}, refresh=2)
    predicted, longer = (simulate(of, steps).timeline() for steps in (run, run + 1))
    measured = replace(predicted, header=RunHeader(net="n", steps=run))
    found, want = compare(longer, measured), totals(measured)
    for what in ("iteration", "exposed", "hidden", "sent"):
        pair = getattr(found, what)
        assert pair.measured == median(getattr(want, what))
        assert pair.predicted == pytest.approx(pair.measured, rel=1e-9)
    assert not found.warnings
    # The totals that a file of some ranks has are of all its steps.
    few = replace(longer, header=Predicted(totals=totals(longer))).select(longer.rank == 0)
    assert any("the sides count unlike steps" in told for told in compare(few, measured).warnings)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("name", STRATEGIES)
def test_the_critical_path_of_a_step_sums_to_the_iteration(name):
    prediction = simulate(made(name), 2 + 6 * CYCLES.get(name, ({}, 1))[1])
    path = prediction.step_path
    assert sum(path.streams.values()) == pytest.approx(path.seconds, rel=1e-9)
    rel = SETTLES.get(name, 1e-9)
    assert path.seconds == pytest.approx(median(prediction.totals.iteration), rel=rel)
    assert all(seconds >= 0 for seconds in path.streams.values())


def test_the_critical_path_ends_where_operations_take_next_to_no_time():
    on, params = machine(1, 4), {"stages": 2, "microbatches": 4}
    on = replace(on, device=replace(on.device, gather=1e-18))  # s/B
    of = strategy_plan(graph([20000] * 6), on, "1f1b", **params)
    path = simulate(of, 4).step_path
    assert sum(path.streams.values()) == pytest.approx(path.seconds, rel=1e-9)


def test_simulate_says_how_many_steps_of_a_training_are_like_the_first():
    of = strategy_plan(graph([3000, 40000]), machine(2, 2), "daso", epochs=10, warmup=2, cooldown=1)
    found = report(simulate(of, STEPS + 1))
    assert found["period_shares"] == pytest.approx([0.3, 0.7])
    assert any(line.startswith("30 % of a training's steps") for line in lines(found))
    found = report(simulate(made("sync"), STEPS + 1))
    assert found["period_shares"] == [1.0]
    assert not any("of a training's steps" in line for line in lines(found))


def test_a_plan_states_the_iteration_of_its_simulation():
    for jitter in (0.0, 0.3):
        of = made("sync", jitter)
        found = simulate(of, 11).totals
        assert iteration(of) == pytest.approx(median(found.iteration), rel=1e-12)


@pytest.mark.parametrize("jitter", [0.0, 0.3])
def test_a_file_of_some_ranks_has_the_numbers_of_all(jitter, tmp_path, capsys):
    prediction = simulate(made("sync", jitter), 5)
    write(tmp_path / "p.json", prediction.timeline(3))
    assert totals(read(tmp_path / "p.json")) == prediction.totals
    assert prediction.timeline().header.totals is None
    plan_file.write(tmp_path / "plan.json", made("sync", jitter))
    words = ["simulate", str(tmp_path / "plan.json"), "-o", str(tmp_path / "p.json")]
    assert main([*words, "--ranks", "3"]) == 0
    assert "p.json, the spans of 3 of 8 ranks" in capsys.readouterr().out
    assert main(["show", str(tmp_path / "p.json")]) == 0
    assert "the timeline has spans of 3 of 8 ranks" in capsys.readouterr().out
    assert numbers(totals(prediction.timeline())) == pytest.approx(numbers(prediction.totals))


def data(capsys, *words):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("ranks", ["2", "64"])
def test_every_command_and_the_page_say_the_same_numbers(ranks, tmp_path, capsys):
    of = str(tmp_path / "plan.json")
    p, m = str(tmp_path / "p.json"), str(tmp_path / "m.json")
    plan_file.write(of, made("sync", 0.2))
    told = data(capsys, "simulate", of, "-o", p, "--ranks", ranks)
    shown = data(capsys, "show", p)
    names = [f"{what}_median_{'bytes' if what == 'sent' else 'seconds'}" for what in NUMBERS]
    want = [told[name] for name in names]
    assert [shown[name] for name in names] == pytest.approx(want, rel=1e-6)  # whole ns in a file
    run = simulate(plan_file.read(of), 11).timeline()
    write(m, replace(run, header=RunHeader()))
    compared = data(capsys, "compare", p, m)
    for what in ("iteration", "exposed", "hidden", "sent"):
        unit = "bytes" if what == "sent" else "seconds"
        pair = compared[f"{what}_median"]
        assert pair[f"predicted_{unit}"] == pytest.approx(told[f"{what}_median_{unit}"], rel=1e-6)
    page = page_data([read(p)], None, None)["totals"]
    want = [told["iteration_median_seconds"], told["exposed_median_seconds"]]
    assert [row["seconds"][0] for row in page[:2]] == pytest.approx(want, rel=1e-6)


def test_what_is_unknown_is_null():
    of = plan(net_file.load("bert-base"), machine(), ["ring+dense"])
    found = report(simulate(of, 4))
    assert found["bubble_median_seconds"] is None
    assert found["memory_bytes"]["activations"] is None


def test_one_step_has_no_iteration(tmp_path, capsys):
    plan_file.write(tmp_path / "plan.json", made("sync"))
    assert main(["simulate", str(tmp_path / "plan.json"), "--steps", "1"]) == 2
    assert "--steps must be at least 2" in capsys.readouterr().err
    one = Timeline.of(
        [Span(0, "compute", "f", 0, 0.0, 1.0, 0.0, 0)],
        header=RunHeader(),
        plan_hash="h",
        ranks=1,
    )
    write(tmp_path / "m.json", one)
    assert data(capsys, "show", str(tmp_path / "m.json"))["iteration_median_seconds"] is None
    assert main(["show", str(tmp_path / "m.json")]) == 0
    assert "no iteration: a step lasts until the next one begins" in capsys.readouterr().out
    write(tmp_path / "p.json", Timeline.of(list(one), header=Predicted(), plan_hash="h", ranks=1))
    assert main(["compare", str(tmp_path / "p.json"), str(tmp_path / "m.json")]) == 2
    assert "has one step, but an iteration lasts until" in capsys.readouterr().err


def test_the_order_of_two_files_does_not_turn_the_signs(tmp_path, capsys):
    p, m = str(tmp_path / "p.json"), str(tmp_path / "m.json")
    found = simulate(made("sync"), 5).timeline()
    write(p, found)
    write(m, replace(found, header=RunHeader(), end=found.end * 1.5, start=found.start * 1.5))
    right = data(capsys, "compare", p, m)
    assert right["iteration_median"]["error"] == pytest.approx(-1 / 3, rel=1e-4)
    assert main(["compare", m, p, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == right
    assert f"{m} is measured and {p} predicted: they are taken so" in said.err
    pictures = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for order, picture in zip(((p, m), (m, p)), pictures, strict=True):
        assert main(["plot", *order, "-o", str(picture)]) == 0
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_the_glossary_explains_every_number_of_a_step():
    text = (Path(__file__).parent.parent / "docs/reference/glossary.md").read_text()
    found = report(simulate(made("sync"), 4))
    keys = [k for k in found if k.endswith(("_seconds", "_bytes", "_path", "_steps", "_errors"))]
    missing = [k for k in [*keys, "statistic"] if f"`{k}`" not in text]
    assert len(keys) > 10
    assert missing in ([], ["memory_limit_bytes"])


@pytest.mark.parametrize("words", [["simulate", "plan.json"], ["price", "9", "--figure", "m.png"]])
def test_long_work_shows_progress_on_a_terminal(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("commsched.progress.QUIET", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    plan_file.write("plan.json", made("sync"))
    more = ["--machine", "p3.16xlarge", "--method", "ring+dense"] if words[0] == "price" else []
    assert main([*words, *more]) == 0
    assert re.search(r"\d+/(11|289) ", capsys.readouterr().err)


@pytest.mark.parametrize("wait", [0, 1])
def test_iterations_sum_to_the_time_that_passes_where_ranks_are_slow_in_turn(wait):
    """The longest time of each step would sum to more: ranks that do not wait overlap them."""
    of = strategy_plan(
        graph([3000, 40000]),
        machine(2, 4, jitter=0.3),
        "daso",
        **{"warmup": 0, "cooldown": 0, "batches": 1000, "gs": 4, "wait": wait},
    )
    prediction = simulate(of, 30)
    passed = prediction.starts[-1].max() - prediction.starts[1].max()
    found = prediction.totals
    assert sum(prediction.iterations[1:]) == pytest.approx(passed, rel=1e-9)
    assert np.mean(found.iteration) == pytest.approx(passed / 28, rel=0.05)
    assert np.diff(prediction.starts[1:], axis=0).max(axis=1).sum() > 1.05 * passed


@pytest.mark.parametrize("data", [0.0, 1e-3])
def test_seconds_that_a_training_measures_apart_are_found_in_the_prediction(data, tmp_path):
    net = replace(graph([3000, 40000]), data=data)
    write(tmp_path / "p.json", simulate(plan(net, machine(), ["ring+dense"]), 4).timeline())
    predicted = read(tmp_path / "p.json")
    other = {"forward/l1": "data", "backward/l1": "optimizer"}
    names = tuple(other.get(name, name) for name in predicted.names)
    found = compare(predicted, replace(predicted, header=RunHeader(), names=names))
    assert set(found.only_measured) == {"data", "optimizer"}
    where = {"optimizer": "the apply of the launches"}
    where |= {"data": "the forward of l0"} if data else {}
    assert dict(found.within) == where
    assert "optimizer in the apply of the launches" in comparison_table(found)
    assert ("data in the forward of l0" in comparison_table(found)) == bool(data)
