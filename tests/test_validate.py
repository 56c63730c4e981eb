"""Validation: what is drawn, how errors are judged, and what was run is not run again."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from pathlib import Path

import pytest

from commsched.calibrate.fit import adjusted
from commsched.cli.main import main
from commsched.coding.registry import CODECS
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import METHODS, find_method, legal_methods
from commsched.lab.testbed import system
from commsched.lab.validate import cells, decisions, nets, report, table
from commsched.lab.validate import main as validate_main
from commsched.lab.validate.cells import (
    BEDS,
    CASES,
    DENSE,
    EMULATED,
    LARGEST,
    LONGEST,
    RATIOS,
    SECONDS,
    SPIN,
    TRAIN,
    TRAINED,
    ValidationCell,
    draw,
    fitting,
    make_plan,
    scaled,
)
from commsched.lab.validate.disturbance import Calm, Disturbance, copying_seconds
from commsched.lab.validate.fabrics import Bed
from commsched.lab.validate.report import bars, summary
from commsched.lab.validate.table import DecisionRow, FailedRow, MeasuredPlan, Row, ValidationRow
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.bucket import BucketSpec
from commsched.planner.search.timing import iteration

MACHINE = resized(machine_file.load("p3.16xlarge"), 2, 2)
REASON = system.lacking()
ABOUT = {"machine": "0" * 12, "cores": 2}


def cell(method: str = DENSE, net: str = "log:1", ratio: float = 1.0) -> ValidationCell:
    """A cell of two hosts."""
    return ValidationCell("2x2-1gbit", net, "sleep", ratio, method)


def row(bed: str = "2x2-1gbit", error: float = 0.0, **other: object) -> ValidationRow:
    """A row whose prediction is off by `error`."""
    values = {
        **cell()._asdict(),
        **ABOUT,
        "plan": "0" * 64,
        "nbytes": 8e6,
        "bed": bed,
        "predicted": 0.2 * (1 + error),
        "measured": 0.2,
        "spread": 0.0,
        "stolen": 0.0,
        "exchanges": ((0.011, 0.01), (0.02, 0.02), (0.03, 0.03)),
        "interval": None,
        "why": (("compute on compute", "compute drift", 0.02),),
    }
    return ValidationRow(**(values | other))  # type: ignore[arg-type]


def decision(*plans: tuple[str, bool, float, float]) -> DecisionRow:
    """A decision between plans: name, whether it compresses, predicted and measured seconds."""
    found = [
        MeasuredPlan(names=(name,), compresses=compresses, predicted=p, measured=(m, 9.0))
        for name, compresses, p, m in plans
    ]
    return DecisionRow(**cell("")._asdict(), **ABOUT, plans=tuple(found))


@pytest.mark.parametrize("kind", nets.KINDS)
def test_a_net_of_a_seed_is_the_same_each_time_and_differs_from_others(kind):
    assert nets.load(f"{kind}:3") == nets.load(f"{kind}:3")
    sizes = {nets.load(f"{kind}:{seed}").numel for seed in range(20)}
    assert len(sizes) > 10
    laws = {t.sparsity.law for t in nets.load(f"{kind}:3").tensors.values()}
    assert ("zipf" in laws) == (kind == "embedding")


def test_the_nets_of_a_validation_are_named_by_kind_and_seed():
    assert nets.load("resnet50").name == "resnet50"
    for wrong in ("cnn", "cnn:", "cnn:-1"):
        with pytest.raises(CommschedError, match="such as cnn:7"):
            nets.load(wrong)


@pytest.mark.parametrize(("kind", "ratio"), [*product(nets.KINDS, RATIOS)])
def test_compute_lasts_the_asked_multiple_of_a_dense_exchange(kind, ratio):
    net = scaled(cell(net=f"{kind}:1", ratio=ratio), MACHINE)
    whole = BucketSpec.uniform(net.numel)
    lasts = price(find_method(DENSE), whole, MACHINE, MACHINE.everyone).seconds
    compute = sum(sum(net.seconds(x, MACHINE.device)) for x in net.layers)
    assert compute == pytest.approx(ratio * lasts, rel=1e-6)
    if net.numel < LARGEST / 1.01:
        assert compute + lasts == pytest.approx(SECONDS, rel=0.03)


def test_cells_of_slow_methods_have_smaller_nets():
    slow = replace(MACHINE, device=replace(MACHINE.device, gather=1e-7))
    whole, less = scaled(cell(), slow), fitting(cell(), slow)
    assert iteration(make_plan(cell(), whole, slow)) > 2 * LONGEST
    assert iteration(make_plan(cell(), less, slow)) == pytest.approx(LONGEST, rel=0.1)
    assert fitting(cell(), MACHINE) == scaled(cell(), MACHINE)


@pytest.mark.parametrize("slope", [0.0, 1e-6])
def test_a_net_does_not_grow_without_end_where_bytes_seem_to_take_no_time(slope):
    machine = adjusted(MACHINE, {"bytes inside": slope, "bytes between": slope})
    assert scaled(cell(), machine).numel <= 1.01 * LARGEST


def test_compute_that_spins_occupies_cores():
    assert not scaled(cell(), MACHINE).occupies_cores
    assert scaled(cell()._replace(compute=SPIN), MACHINE).occupies_cores


def test_a_draw_meets_every_bed_method_ratio_net_and_compute():
    parts = draw(0)
    every = [one for part in parts for one in part]
    assert len(set(every)) == len(every)
    assert draw(0) == parts != draw(1)
    for bed in BEDS:
        here = [one for one in every if one.bed == bed]
        assert set(METHODS) <= {one.method for one in here}
        ways = {(one.compute, one.ratio) for one in here}
        assert ways == {*product(EMULATED, RATIOS), (TRAIN, 0.0)}
        assert {one.net for one in here if one.compute == TRAIN} == set(TRAINED)
        assert {one.net.partition(":")[0] for one in here} >= set(nets.KINDS)
    assert sum(not one.method for one in every) == CASES
    found = {find_method(one.method) for one in every if one.method not in ("", cells.PLANNED)}
    assert {method.coding for method in found} >= {*CODECS}
    legal = {m.family for m in legal_methods(Bed.of("2x2-1gbit").group)}
    assert {method.family for method in found} == legal


def test_the_subset_is_a_part_of_the_whole_that_meets_all_dimensions():
    subset = draw(0)[0]
    assert len({Bed.of(one.bed)[1:] for one in subset}) == 5
    assert {(one.compute, one.ratio) for one in subset} >= {*product(EMULATED, RATIOS)}
    assert {one.net.partition(":")[0] for one in subset} >= set(nets.KINDS)
    assert sum(not one.method for one in subset) == 2
    ordinary = [one.method for one in subset if one.compute != TRAIN and one.method]
    assert len(set(ordinary)) == len(ordinary)


@pytest.mark.parametrize("wrong", ["2x2", "2x2-moon", "1x1-shared", "2x1-shared", "1x2-slow"])
def test_a_bed_that_cannot_be_is_refused(wrong):
    with pytest.raises(CommschedError):
        Bed.of(wrong)


def test_errors_have_signs_and_intervals_hold_or_not():
    some = [row(error=e, interval=(0.19, top)) for e, top in ((-0.03, 0.2), (0.01, 0.21))]
    some.append(row(error=0.02, interval=(0.21, 0.22)))
    s = summary("x", some)
    assert (s.cells, s.median, s.worst) == (3, pytest.approx(0.02), pytest.approx(0.03))
    assert s.signed == pytest.approx(0.0)
    assert s.exchanges == s.exchanges_signed == 0.0  # the median of 10 %, 0 and 0
    assert s.inside == pytest.approx(2 / 3)


def missed(rows: list[Row]) -> list[str]:
    """The bars that do not hold."""
    return [bar.what for bar in bars(rows) if not bar.met]


def test_bars_depend_on_cores_and_training_and_say_why_they_are_missed():
    alone, both = "2x1-1gbit", [0.03, -0.03]
    assert missed([row(alone, error=e) for e in both]) == []
    assert missed([row(alone, error=0.03)]) == ["a core per rank, iteration, mean signed error"]
    assert missed([row(error=e) for e in (0.07, -0.07)]) == []
    assert missed([row(alone, error=e) for e in (0.07, -0.07)]) == [
        "a core per rank, iteration, median error"
    ]
    trained = [row(alone, error=e, compute=TRAIN) for e in (0.055, -0.055)]
    assert missed(trained) == []
    assert missed([row(error=0.3), *[row(error=-0.004)] * 99]) == [str(row().cell)]
    assert missed([row(error=0.3, spread=0.2), *[row(error=-0.004)] * 99]) == []
    (told,) = [bar for bar in bars([row(alone, error=0.03)]) if not bar.met]
    assert "compute on compute: compute drift +2.0%" in str(told)
    sure = [row(interval=(0.1, 0.3))] * 9 + [row(interval=(0.1, 0.11))] * 2
    assert missed(sure) == []
    assert missed(sure[:9]) == []  # of fewer than ten no share says anything
    assert missed([*sure[:9], *sure[:9]]) == [
        "measured medians inside p10 to p90 of their predictions"
    ]


def test_decisions_are_judged_by_regret_rank_and_whether_to_compress():
    good = decision(("best", False, 1, 1.0), ("a", True, 2, 2.0), ("b", True, 3, 3.0))
    assert (good.regret, good.tau, good.right) == (1.0, 1.0, True)
    poor = decision(("best", True, 1, 3.0), ("a", False, 2, 2.0), ("b", True, 3, 4.0))
    assert (poor.regret, poor.right) == (1.5, False)
    assert poor.tau == pytest.approx(1 / 3)
    near = decision(("best", True, 1, 1.02), ("a", False, 2, 1.0))
    assert near.right
    assert missed([good]) == []
    assert len(missed([poor])) == 4


@pytest.mark.by_day(0)
def test_a_decision_has_eight_plans_and_the_choice_is_predicted_to_be_the_fastest_of_ours():
    net = scaled(cell("", net="cnn:5"), MACHINE)
    made = decisions.plans(net, MACHINE, 0.1)
    assert len({one.plan.hash for one in made}) == len(made) <= decisions.PLANS
    assert [one.seconds for one in made] == pytest.approx([iteration(one.plan) for one in made])
    names = [name for one in made for name in one.names]
    assert len(set(names)) == len(names)
    assert {*decisions.OURS, "ddp-25mb"} <= set(names)
    ours = [one.seconds for one in made if set(one.names) & set(decisions.OURS)]
    assert made[0].seconds == min(ours)


def test_a_table_keeps_the_newest_row_and_drops_a_torn_line(tmp_path):
    path = tmp_path / "table.jsonl"
    first = FailedRow(**cell("zen")._asdict(), **ABOUT, why="no memory")
    with table.appending(path) as file:
        file.add(first)
        file.add(row())
        file.add(decision(("best", False, 1.0, 1.0)))
    with path.open("ab") as torn:
        torn.write(b'{"type": "cell", "bed')
    again = row(error=0.01, method="zen")
    with table.appending(path) as file:
        assert [each.cell for each in file.rows] == [cell("zen"), cell(), cell("")]
        file.add(again)
    assert [each.cell for each in table.read(path)] == [cell(), cell(""), cell("zen")]
    assert table.read(path)[-1] == again
    path.write_text('{"format": "other"}\n')
    with pytest.raises(CommschedError, match=r"line 1"):
        table.read(path)


def test_the_report_says_what_was_left_out_and_what_failed():
    rows = [
        row(**draw(0)[0][0]._asdict()),
        decision(("best", False, 1.0, 1.0)),
        FailedRow(**cell("zen")._asdict(), **ABOUT, why="no memory"),
    ]
    told = report.markdown(rows, 0)
    count = sum(map(len, draw(0)))
    assert f"{count - 1} of the {count} of seed 0 are left out" in told
    assert f"failed: {cell('zen')}: no memory" in told
    assert "| 2x2-1gbit log:1 sleep x 1 | best, 1000.0 ms |" in told


@pytest.mark.parametrize("more", [[], ["--fail-above", "10%"]])
def test_a_cell_that_fails_is_no_success(more, tmp_path, monkeypatch):
    def failed(wanted, *_):
        return [FailedRow(**each._asdict(), **ABOUT, why="no memory") for each in wanted.cells]

    monkeypatch.setattr(validate_main, "validate", failed)
    words = ["--bed", "1x2-shared", "--net", "log:3", "--method", "ring+dense"]
    assert main(["validate", "-o", str(tmp_path / "v"), *words, "--compute", "sleep", *more]) == 1


def test_the_subset_has_all_beds_that_are_named(tmp_path, monkeypatch):
    asked = []

    def failed(wanted, *_):
        asked.extend(wanted.cells)
        return [FailedRow(**asked[0]._asdict(), **ABOUT, why="no memory")]

    monkeypatch.setattr(validate_main, "validate", failed)
    beds = ["1x2-shared", "1x4-shared", "2x1-1gbit"]
    named = [word for bed in beds for word in ("--bed", bed)]
    assert main(["validate", "-o", str(tmp_path / "v"), "--quick", *named]) == 1
    assert list(dict.fromkeys(each.bed for each in asked)) == beds
    assert len(set(asked)) == len(asked)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path, capsys):
    assert main(["validate", "-o", str(tmp_path / "v"), "--bed", "1x2-gpu"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("commsched: --device cuda")
    assert said.count("\n") == 1
    assert not (tmp_path / "v").exists()


def test_what_was_disturbed_is_measured_again_and_the_calmest_counts(tmp_path):
    stat = tmp_path / "stat"
    ticks = [0] * 8

    def measuring(stolen: list[int]) -> Iterator[int]:
        for number, lost in enumerate(stolen):
            ticks[0] += 100 - lost
            ticks[7] += lost
            stat.write_text("cpu  " + " ".join(map(str, ticks)) + " 0 0\ncpu0 0\n")
            yield number

    for stolen, expected in (
        ([1, 50], (0, Disturbance(0.01))),
        ([9, 2, 50], (1, Disturbance(0.02))),
        ([9, 4, 6, 0], (1, Disturbance(0.04))),
    ):
        stat.write_text("cpu  " + " ".join(map(str, ticks)) + " 0 0\n")
        values = measuring(stolen)
        assert Calm(stat)(lambda values=values: next(values)) == expected
    values = measuring([9, 2])
    assert Calm(stat, patience=0.0)(lambda: next(values)) == (0, Disturbance(0.09))
    assert Calm(tmp_path / "nothing")(lambda: 7) == (7, Disturbance(0.0))


def test_what_is_measured_waits_for_memory_to_be_as_fast_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr("commsched.lab.validate.disturbance.PAUSE", 0.0)
    for copies, patience, expected in (
        ([1.0, 1.05], 60.0, (0, Disturbance(0.0, 1.05))),
        ([2.0, 2.0, 1.0, 1.0], 60.0, (0, Disturbance(0.0, 1.0))),  # it is slow at first
        ([1.0, 2.0, 1.0, 0.95], 60.0, (1, Disturbance(0.0, 0.95))),  # it gets slow meanwhile
        ([1.0, 2.0, 1.0, 0.5, 1.0, 1.5], 60.0, (2, Disturbance(0.0, 1.5))),
        ([2.0, 0.5], 0.0, (0, Disturbance(0.0, 2.0))),
    ):
        left, values = iter(copies), count()
        calm = Calm(tmp_path / "nothing", patience, copying=left.__next__)
        assert calm(values.__next__, usual=1.0) == expected
        assert not list(left)
    assert Calm(tmp_path / "nothing", copying=iter(()).__next__)(lambda: 7) == (7, Disturbance(0.0))
    assert copying_seconds() > 0.0


def test_the_figure_shows_every_group_and_value_of_each_dimension(tmp_path):
    rows = [
        row(bed, 0.05 * i, method=method)
        for i, (bed, method) in enumerate(product(("2x1-1gbit", "4x2-400mbit"), ("zen", DENSE)))
    ]
    for name in "ab":
        report.draw_figure(rows, tmp_path / f"{name}.svg")
    first, second = ((tmp_path / f"{name}.svg").read_text() for name in "ab")
    assert first == second
    for word in ("zen", "dense", "2x1-1gbit", "ranks sharing cores", *report.DIMENSIONS):
        assert word in first


def test_a_figure_of_another_kind_is_refused(tmp_path):
    with pytest.raises(CommschedError, match=r"use \.png, \.svg or \.pdf"):
        report.draw_figure([row()], tmp_path / "a.gif")


@pytest.mark.by_day(0)  # it calibrates and runs jobs for a minute
@pytest.mark.parametrize(
    "bed",
    [
        "1x2-shared",
        pytest.param("2x1-slow", marks=pytest.mark.skipif(bool(REASON), reason=str(REASON))),
    ],
)
def test_cells_are_predicted_and_run_once(tmp_path, capsys, bed):
    words = ["validate", "-o", str(tmp_path), "--bed", bed, "--net", "log:1", "--ratio", "0.25"]
    words += ["--compute", "spin", "--steps", "4", "--seconds", "1", "--json"]
    words += ["--patience", "0"]  # so near the other tests everything is disturbed
    main([*words, "--method", "ring+dense"])
    first = json.loads(capsys.readouterr().out)["rows"]
    status = main([*words, "--method", "ring+dense", "--method", "zen", "--fail-above", "0%"])
    again = json.loads(capsys.readouterr().out)["rows"]
    assert status == 1
    assert [r["method"] for r in again] == ["ring+dense", "zen"]
    assert again[0] == first[0]
    assert len((tmp_path / "table.jsonl").read_text().splitlines()) == 3
    assert all(r["measured"] > 0 and r["predicted"] > 0 for r in again)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000


@pytest.mark.by_day(0)  # it calibrates, profiles and trains
def test_nets_are_trained_by_a_plan_for_their_profile(tmp_path, capsys):
    words = ["validate", "-o", str(tmp_path), "--bed", "1x2-shared", "--net", "mlp", "--steps", "4"]
    words += ["--compute", "train", "--seconds", "1", "--json", "--patience", "0"]
    main([*words, "--method", cells.PLANNED])
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert found["group"].startswith("real training")
    assert found["measured"] > 0
