"""`bench planner --part measured`: our plans and the baselines' on real ranks."""

from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.bench.measured_plans import (
    KINDS,
    MeasuredRun,
    PlanCell,
    plans,
    read,
    request,
)
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.planner.baselines.ddp import BUCKET, FIRST

MACHINE = resized(machine_file.load("p3.16xlarge"), 2, 2)


def run(planners: str, *measured: float, again: tuple[float, ...] = (99.0,)) -> MeasuredRun:
    """Two runs of some planners' plan."""
    names = tuple(planners.split())
    return MeasuredRun(planners=names, plan=planners, predicted=1.0, measured=(measured, again))


def cell(*runs: MeasuredRun) -> PlanCell:
    """A cell of some runs."""
    return PlanCell(fabric="1gbit", net="lstm", kind="lossless", runs=runs)


def test_we_are_compared_with_the_baseline_of_the_shortest_median_step_of_a_run():
    found = cell(
        run("best", 4.0, 5.0, again=(1.0, 1.1, 9.0)),
        run("ddp-25mb", 2.2),
        run("hipress espresso", 0.1, 2.0, 2.0, again=(0.1, 2.1, 2.1)),
    )
    assert found.best.planners == ("hipress", "espresso")
    assert found.ratio == pytest.approx(0.55)
    assert found.speedup == pytest.approx(2.0)


def test_a_plan_that_a_baseline_makes_too_is_as_fast_as_itself():
    assert cell(run("best hipress", 1.0), run("ddp-25mb", 2.0)).ratio == 1.0
    assert cell(run("best hipress", 3.0), run("ddp-25mb", 2.0)).ratio == 1.5


@pytest.mark.parametrize("kind", KINDS)
def test_equal_plans_are_run_once_and_slow_ones_only_of_the_library(kind):
    made = plans(request("lstm", kind, MACHINE, 1.0))
    names = [name for each in made for name in each.planners]
    assert len(names) == len(set(names))
    assert {"best", "ddp-25mb"} <= set(names)
    assert len({each.plan.hash for each in made}) == len(made)
    least = min(each.predicted for each in made)
    assert all(m.predicted <= 1.3 * least for m in made if "ddp-25mb" not in m.planners)
    for each in made:
        each.plan.check()


def test_buckets_of_fixed_size_shrink_with_the_net():
    asked = request("lstm", "lossless", MACHINE, 1.0)
    (ddp,) = (m.plan for m in plans(asked) if "ddp-25mb" in m.planners)
    assert asked.scale != 1.0
    for number, launch in enumerate(ddp.launches):
        size, limit = 4 * ddp.spec(launch).numel, FIRST if number == 0 else BUCKET
        assert size <= asked.scale * limit or len(launch.pieces) == 1


def test_what_cannot_be_measured_is_refused_in_one_sentence(capsys, tmp_path):
    words = ["bench", "planner", "--part", "measured", "-o", str(tmp_path / "m")]
    for flag in ("--net", "--fabric"):
        assert main([*words, flag, "moon"]) == 2
        assert f"{flag} must be one of " in capsys.readouterr().err
    assert not Path(tmp_path / "m").exists()
    (tmp_path / "table.json").write_text('{"format": "other", "cells": []}')
    with pytest.raises(CommschedError, match="format"):
        read(tmp_path / "table.json")
