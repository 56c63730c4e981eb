"""Validation: cells fit their fabric, bars are judged, and what was run is not run again."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from commsched.calibrate.fit import adjusted
from commsched.cli.main import main
from commsched.cost.price import price
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.lab.testbed import system
from commsched.lab.validate import table
from commsched.lab.validate.cells import (
    CROSSED,
    LARGEST,
    METHODS,
    NETS,
    ROTATED,
    ValidationCell,
    fitting,
    make_plan,
)
from commsched.lab.validate.disturbance import Calm
from commsched.lab.validate.fabrics import FABRICS, FabricShape
from commsched.lab.validate.main import ValidationRequest
from commsched.lab.validate.table import ValidationRow, bars, summary
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.net.bucket import BucketSpec
from commsched.plot.accuracy import draw
from tests.support import sampling

MACHINE = resized(machine_file.load("p3.16xlarge"), 2, 2)
REASON = system.lacking()
SPARSE = ("coo", "zen", "dsar", "omnireduce", "sparse-ps", "node-union")  # without a loss


def row(
    fabric: str = "1gbit", error: float = 0.0, spread: float = 0.0, **other: object
) -> ValidationRow:
    """A row whose prediction is off by `error`."""
    values = {
        "fabric": fabric,
        "net": "lstm",
        "family": "ring",
        "method": "ring+dense",
        "ranks": 4,
        "nbytes": 8e6,
        "plan": "0" * 64,
        "predicted": 0.2 * (1 + error),
        "measured": 0.2,
        "spread": spread,
        "collectives": ((0.011, 0.01), (0.02, 0.02), (0.03, 0.03)),
        "phases": ((0.011, 0.01), (0.012, 0.01), (0.008, 0.01), (0.03, 0.03)),
        "hidden": (0.8, 0.8),
    }
    return ValidationRow(**(values | other))  # type: ignore[arg-type]


@pytest.mark.parametrize("net", NETS)
def test_a_net_is_scaled_until_one_ring_lasts_as_long_as_asked(net):
    scale = fitting(net, MACHINE, 0.1)
    plan = make_plan(ValidationCell("any", net, "ring"), MACHINE, scale)
    whole = BucketSpec.uniform(plan.net.numel)
    lasts = price(find_method("ring+dense"), whole, MACHINE, MACHINE.everyone).seconds
    assert lasts == pytest.approx(0.1, rel=0.03)
    compute = sum(sum(plan.net.seconds(x, MACHINE.device)) for x in plan.net.layers)
    assert compute == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize("slope", [0.0, 1e-6, 0.1])
def test_a_net_does_not_grow_without_end_where_bytes_seem_to_take_no_time(slope):
    machine = adjusted(MACHINE, {"bytes inside": slope, "bytes between": slope, "addition": slope})
    scale = fitting("lstm", replace(machine, nic=None), 0.1)
    assert (
        make_plan(ValidationCell("any", "lstm", "ring"), machine, scale).net.numel <= 1.01 * LARGEST
    )


@pytest.mark.parametrize("family", METHODS)
def test_every_bucket_travels_by_the_method_of_its_family(family):
    plan = make_plan(ValidationCell("any", "lstm", family), MACHINE, fitting("lstm", MACHINE))
    assert {launch.method for launch in plan.launches} == {METHODS[family]}
    numel = sum(piece.stop - piece.start for x in plan.launches for piece in x.pieces)
    assert numel == plan.net.numel
    laws = {tensor.sparsity.law for tensor in plan.net.tensors.values()}
    assert ("dense" in laws) == (family not in SPARSE)


def test_some_families_meet_all_nets_and_the_others_one_per_fabric_each_time_another():
    wanted = ValidationRequest(
        fabrics=FABRICS, nets=NETS, families=tuple(CROSSED), shape=FabricShape(2, 2), others=True
    )
    cells = wanted.cells
    assert len(set(cells)) == len(cells) == len(FABRICS) * (len(NETS) * len(CROSSED) + len(ROTATED))
    assert {cell.family for cell in cells} == set(METHODS)
    for family in ROTATED:
        assert {cell.net for cell in cells if cell.family == family} == set(NETS)


def test_a_summary_is_made_of_absolute_errors():
    s = summary("x", [row(error=e, hidden=(0.8, 0.6)) for e in (-0.03, 0.01, 0.02)])
    assert (s.cells, s.median, s.most) == (3, pytest.approx(0.02), pytest.approx(0.03))
    assert s.p90 == pytest.approx(0.028)
    assert s.collective == 0.0  # the median of 10 %, 0 and 0
    assert s.phase == pytest.approx(0.15)  # of 10, 20, 20 % and 0
    assert s.hidden == pytest.approx(0.75)


def missed(rows: list[ValidationRow]) -> list[str]:
    """The bars that do not hold."""
    return [bar.what for bar in bars(rows) if not bar.met]


def test_bars_hold_for_good_predictions_and_name_what_is_missed():
    assert missed([row(error=0.02)] * 10) == []
    assert missed([row(error=0.02)] * 99 + [row(error=0.2)]) == [
        "testbed, worst cell (1gbit lstm ring)"
    ]
    assert missed([row(error=0.02)] * 99 + [row(error=0.2, spread=0.12)]) == []
    assert missed([row(hidden=(0.9, 0.5))]) == ["testbed, hidden of what is planned"]
    assert missed([row("shared", error=0.3)]) == ["shared memory, iteration, median error"]
    assert len(missed([row(error=0.3, collectives=((2.0, 1.0),))])) == 4
    assert missed([row("gpu", error=0.15), row("gpu", error=-0.09, ranks=2)]) == []
    assert missed([row("gpu", error=0.15, ranks=2)]) == ["2 ranks on GPUs, lstm ring"]
    assert missed([row("gpu", error=-0.21)]) == ["4 ranks on GPUs, lstm ring"]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has an NVIDIA GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path, capsys):
    assert main(["validate", "-o", str(tmp_path / "v"), "--fabric", "gpu"]) == 2
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
        ([1, 50], (0, 0.01)),
        ([9, 2, 50], (1, 0.02)),
        ([9, 4, 6, 0], (1, 0.04)),
    ):
        stat.write_text("cpu  " + " ".join(map(str, ticks)) + " 0 0\n")
        values = measuring(stolen)
        assert Calm(stat)(lambda values=values: next(values)) == expected
    values = measuring([9, 2])
    assert Calm(stat, patience=0.0)(lambda: next(values)) == (0, 0.09)
    assert Calm(tmp_path / "nothing")(lambda: 7) == (7, 0.0)


def test_a_table_survives_its_file(tmp_path):
    rows = [row(error=0.01), row("shared", error=-0.2)]
    table.write(tmp_path / "t.json", rows)
    assert table.read(tmp_path / "t.json") == rows
    (tmp_path / "t.json").write_text('{"format": "other", "rows": []}')
    with pytest.raises(CommschedError, match=r"format"):
        table.read(tmp_path / "t.json")


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_figure_of_the_same_table_is_the_same_file(tmp_path, suffix):
    rows = [row(error=0.01 * i, family=f) for i, f in enumerate(METHODS)]
    for name in "ab":
        draw(rows, tmp_path / f"{name}{suffix}")
    first, second = ((tmp_path / f"{name}{suffix}").read_bytes() for name in "ab")
    assert first == second
    if suffix == ".svg":
        assert all(family in first.decode() for family in METHODS)


def test_a_figure_of_another_kind_is_refused(tmp_path):
    with pytest.raises(CommschedError, match=r"use \.png, \.svg or \.pdf"):
        draw([row()], tmp_path / "a.gif")


@pytest.mark.skipif(not sampling.whole, reason="by night: it calibrates and runs jobs for a minute")
@pytest.mark.parametrize(
    "fabric",
    ["shared", pytest.param("slow", marks=pytest.mark.skipif(bool(REASON), reason=str(REASON)))],
)
def test_cells_are_predicted_and_run_once(tmp_path, capsys, fabric):
    words = ["validate", "-o", str(tmp_path), "--fabric", fabric, "--net", "lstm", "--hosts", "2"]
    words += ["--lanes", "1", "--scale", "0.2", "--steps", "4", "--seconds", "1", "--json"]
    words += ["--patience", "0"]  # so near the other tests everything is disturbed
    main([*words, "--method", "ring"])
    first = json.loads(capsys.readouterr().out)["rows"]
    record = tmp_path / fabric / "lstm-ring.measured.json"
    stamp = record.stat().st_mtime_ns
    status = main([*words, "--method", "ring", "--method", "coo", "--fail-above", "0%"])
    again = json.loads(capsys.readouterr().out)["rows"]
    assert status == 1
    assert [r["family"] for r in again] == ["ring", "coo"]
    assert again[0] == first[0]
    assert record.stat().st_mtime_ns == stamp
    assert all(r["measured"] > 0 and r["predicted"] > 0 for r in again)
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
