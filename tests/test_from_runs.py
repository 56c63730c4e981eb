"""A machine that is wrong is fitted to runs of a user's own plans."""

import json
from dataclasses import replace

import numpy as np
import pytest

from commsched.calibrate.fit import adjusted
from commsched.calibrate.from_runs import MeasuredRun, fitted, matched
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.plan import file as plan_file
from commsched.simulate.engine import simulate
from commsched.timeline import file as timeline_file
from commsched.timeline.header import RunHeader
from tests.support.jobs import RUN, Job
from tests.support.small_plans import graph, machine, plan

WRONG = [
    {"latency between": 3.0, "bytes between": 1 / 3},
    {"latency between": 1 / 3, "bytes between": 3.0, "startup": 3.0},
    {"bytes between": 3.0, "bytes inside": 3.0, "coding": 1 / 3, "gather": 3.0},
]


def measured(on, methods, sizes) -> MeasuredRun:
    """What a run of a plan would measure on a machine without noise."""
    made = plan(graph(sizes, seconds=1e-3), on, methods)
    phases = np.arange(sum(1 for _ in made.launches))
    run = MeasuredRun(made, 0.0, None, phases)
    step = float(np.median(simulate(made, 11).iterations))
    return replace(run, step=step, measured=run.predicted(on))


@pytest.mark.parametrize("wrong", WRONG)
def test_two_runs_correct_a_machine_that_is_off_by_three(wrong):
    right = machine(2, 2)
    sizes = [300, 10_000, 1_000_000, 3_000, 100_000, 300_000, 1_000, 30_000, 2_000_000]
    runs = [measured(right, [name] * len(sizes), sizes) for name in ("ring+dense", "ring+fp16")]
    found = fitted(adjusted(right, wrong), runs)
    assert max(abs(each.error) for each in found.before) > 0.5
    assert max(abs(each.error) for each in found.machine.held_out) < 0.1
    for run in runs:
        assert run.predicted_step(found.machine) == pytest.approx(run.step, rel=0.04)


def test_a_machine_that_is_right_stays_as_it_is():
    right = machine(2, 2)
    run = measured(right, ["ring+dense"] * 4, [300, 10_000, 1_000_000, 3_000])
    found = fitted(right, [run])
    assert found.moved == {}
    assert replace(found.machine, held_out=()) == right


def test_runs_of_other_ranks_are_refused():
    run = measured(machine(2, 2), ["ring+dense"] * 4, [300] * 4)
    with pytest.raises(CommschedError, match="the runs were made by 4 ranks on 2 nodes; the mac"):
        fitted(machine(1, 2), [run])


def later_run(since, method):
    """What a run would measure whose buckets take another method from a step on."""
    made = plan(graph([1000, 300_000, 3_000, 100_000]), machine(2, 2), ["ring+dense"])
    more = [
        replace(x, name=f"{x.name}-later", since=since, method=method, priority=x.priority + 9)
        for x in made.launches
    ]
    made = replace(made, launches=(*made.launches, *more))
    timeline = simulate(made, 12).timeline()
    return made, replace(timeline, header=RunHeader())


@pytest.mark.parametrize(("since", "last"), [(3, True), (9, True), (30, False)])
@pytest.mark.parametrize("method", ["ring+fp16", "zen"])
def test_of_launches_that_begin_later_those_in_use_at_the_end_are_fitted(since, last, method):
    made, timeline = later_run(since, method)
    (run,) = matched({"m.json": timeline}, [made])
    assert {launch.method for launch in run.plan.launches} == {method if last else "ring+dense"}
    # The first step, which is predicted, may differ a little from later ones.
    assert run.measured.exchange == pytest.approx(run.predicted(made.machine).exchange, rel=0.01)
    assert run.step == pytest.approx(run.predicted_step(made.machine), rel=0.01)
    found = fitted(adjusted(made.machine, WRONG[1]), [run])
    assert max(abs(each.error) for each in found.before) > 0.5
    assert max(abs(each.error) for each in found.machine.held_out) < 0.15


def test_the_command_fits_to_a_real_run_and_says_what_moved(tmp_path, capsys):
    made = plan(graph([1000, 300_000, 3_000, 100_000]), machine(1, 2), ["ring+dense"] * 4)
    where, timeline = tmp_path / "plan.json", tmp_path / "measured.json"
    plan_file.write(where, made)
    with Job(2, [*RUN, str(where), "-o", str(timeline), "--steps", "6"]) as job:
        assert job.wait(60.0).status == 0, job.output
    words = ["calibrate", "--from", str(timeline), "-o", str(tmp_path / "m.json")]
    assert main([*words, "--plan", str(where)]) == 0
    said = capsys.readouterr().out
    assert " ms measured, " in said
    assert "held-out exchange" in said
    found = machine_file.load(str(tmp_path / "m.json"))
    assert [each.name for each in found.held_out] == [f"{made.launches[1].name} by ring+dense"]
    assert main(words) == 2
    assert "give that plan with --plan" in capsys.readouterr().err
    simulated = simulate(made, 2).timeline()
    with pytest.raises(CommschedError, match="give a measured one"):
        matched({"p.json": simulated}, [made])
    whole = timeline_file.read(timeline)
    later = whole.select(whole.step >= 1)  # as of a training that went on
    cut = later.select(np.arange(len(later)) < len(later) - 3)
    (run,) = matched({"m.json": cut}, [made])
    assert run.phases.tolist() == [0, 1, 2, 3]
    with pytest.raises(CommschedError, match=r"m\.json: no exchange of its plan was made twice"):
        matched({"m.json": whole.select(whole.step < 1)}, [made])


@pytest.mark.parametrize("words", ["--seconds 3", "--device cuda", "--timeout 5"])
def test_options_of_a_measurement_change_nothing_for_runs(words, tmp_path, capsys):
    output = ["-o", str(tmp_path / "m.json")]
    assert main(["calibrate", "--from", "measured.json", *output, *words.split()]) == 2
    told = f"{words.split()[0]} is for a measurement; --from fits to runs: leave it out"
    assert told in capsys.readouterr().err


def test_a_fit_that_held_nothing_out_says_so_in_json_too(tmp_path, capsys):
    where, timeline = tmp_path / "plan.json", tmp_path / "measured.json"
    plan_file.write(where, plan(graph([1000]), machine(1, 2), ["ring+dense"]))
    with Job(2, [*RUN, str(where), "-o", str(timeline), "--steps", "4"]) as job:
        assert job.wait(60.0).status == 0, job.output
    words = ["calibrate", "--from", str(timeline), "--plan", str(where)]
    assert main([*words, "-o", str(tmp_path / "none" / "m.json")]) == 2
    assert "m.json: cannot be written there" in capsys.readouterr().err
    output = str(tmp_path / "m.json")
    assert main([*words, "-o", output, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["machine"], found["ranks"]) == (output, 2)
    assert found["held_out_errors"] == []
    (warning,) = found["warnings"]
    assert warning.startswith("no launch was held out")
