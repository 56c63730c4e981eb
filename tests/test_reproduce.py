"""Published numbers: a miss has its cause, a gap is explained, and the record is today's."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import files
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.lab.reproduce import paper as base
from commsched.lab.reproduce.page import page
from commsched.lab.reproduce.paper import PAPERS, PublishedRow, Reproduction
from commsched.lab.reproduce.papers import samo
from commsched.lab.reproduce.papers.samo.systems import dealt, with_sparse_products
from commsched.lab.reproduce.papers.zen.schemes import EMBEDDING
from commsched.lab.reproduce.papers.zen.times import PRINTED, summed_first, zipf_of
from commsched.lab.reproduce.training_steps import (
    computing,
    gridded,
    in_turn,
    overlapped,
    pipelined,
    simulated,
)
from commsched.machine import file as machines
from commsched.machine.model import resized
from commsched.net import file as nets
from commsched.net.sparsity import Sparsity
from commsched.plot.reproduction import draw
from commsched.simulate.engine import simulate
from tests.support import sampling
from tests.support.pipeline_plans import net as chain

RECORDED = Path(__file__).resolve().parent.parent / "traces" / "reproduce"
SLOW = {
    "daso",
    "espresso",
    "fsdp",
    "megatron",
    "samo",
}  # whose predictions take seconds or minutes: by night alone
NAMES = [name for name in PAPERS if sampling.whole or name not in SLOW]
pytestmark = pytest.mark.timeout(1200 if sampling.whole else 300)  # megatron takes minutes


@cache
def found(name: str) -> Reproduction:
    """Predict the numbers of a paper once for all tests."""
    return base.reproduce(name)


def test_the_promised_papers_are_there() -> None:
    assert set(PAPERS) == {
        *("samo", "daso", "zen", "local", "fft", "espresso", "beside", "megatron", "fsdp"),
    }


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", NAMES)
def test_only_results_miss_and_every_miss_says_why(name: str) -> None:
    rows = found(name).rows
    assert all(row.bar == base.RESULT for row in rows if row.is_result)
    for row in rows:
        assert row.met or (row.cause and "\n" not in row.cause), (row.group, row.what, row.error)
        assert row.met or row.is_result or row.what == "resnet32", (row.group, row.what, row.error)
    assert [t.what for t in found(name).trends if t.required and not t.met] == []


@pytest.mark.by_day(1)
@pytest.mark.parametrize("name", NAMES)
def test_derivations_are_never_called_published(name: str) -> None:
    for row in found(name).rows:
        assert row.published is None or row.derived is None, row.what
        assert "formula" not in row.note or row.published is None, row.what


@pytest.mark.parametrize("name", NAMES)
def test_what_was_inferred_has_another_result_under_its_alternative(name: str) -> None:
    for row in found(name).rows:
        for each in row.inferred:
            assert each.inferred
            assert each.instead
            assert each.predicted != row.predicted, (row.group, row.what)


def test_a_verdict_is_one_line_with_the_worst_error_or_the_causes() -> None:
    def row(predicted: float, **more: Any) -> PublishedRow:
        return PublishedRow(
            group="g", what="w", inputs="", unit="s", published=1.0, predicted=predicted, **more
        )

    def verdict(*rows: PublishedRow) -> str:
        return Reproduction(name="n", source="s", rows=rows, trends=()).verdict

    assert verdict(row(1.1), row(0.9)) == "reproduced: 2 results within 10%"
    missed = row(1.2, cause="stalls"), row(0.5, cause="stalls"), row(2.0, cause="no batch")
    told = "1 of 4 results within 15%, 3 refuted: 2 because stalls; 1 because no batch"
    assert verdict(row(1.0), *missed) == told
    assert verdict(missed[2]) == "0 of 1 results within 15%, 1 refuted because no batch"
    assert verdict(row(1.0), *missed, row(3.0, cause="rain")).endswith("no batch; 1 more cause")
    assert verdict(row(9.0, measured=True)) == "no verdict: no result could be compared"


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_side_is_explained_and_a_group_has_one_unit(name: str) -> None:
    rows = found(name).rows
    assert all(row.note for row in rows if row.wanted is None or row.predicted is None)
    assert all(row.inputs for row in rows if row.predicted is not None)
    units: dict[str, set[str]] = {}
    for row in rows:
        units.setdefault(row.group, set()).add(row.unit)
    assert all(len(several) == 1 for several in units.values())
    keys = [(row.group, row.what) for row in rows]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("name", NAMES)
def test_the_record_is_what_is_predicted_today(name: str) -> None:
    kept, now = base.read(RECORDED / f"{name}.json"), found(name)
    assert kept.source == now.source
    assert [t.what for t in kept.trends] == [t.what for t in now.trends]
    for before, row in zip(kept.rows, now.rows, strict=True):
        assert (before.group, before.what, before.inputs) == (row.group, row.what, row.inputs)
        assert (before.unit, before.wanted, before.bar) == (row.unit, row.wanted, row.bar)
        assert (before.note, before.cause) == (row.note, row.cause)
        assert [x.inferred for x in before.inferred] == [x.inferred for x in row.inferred]
        if not row.measured and row.predicted is not None:
            assert before.predicted == pytest.approx(row.predicted, rel=1e-6)  # other processors


def test_the_page_is_what_the_records_give() -> None:
    kept = [base.read(path) for path in sorted(RECORDED.glob("*.json"))]
    assert [one.name for one in kept] == sorted(PAPERS)
    text = page(kept, "../../plots/reproduce-{}.png")
    assert text == (RECORDED.parent.parent / "docs" / "explanation" / "papers.md").read_text()


def test_daso_saves_what_its_paper_says_under_stalls_of_nodes() -> None:
    (row,) = (row for row in base.read(RECORDED / "daso.json").rows if row.is_result)
    within = [25.0 <= (each.predicted or 0.0) <= 34.0 for each in row.inferred]
    assert sum(within) >= 2


def test_the_speed_ups_of_alexnet_come_out_of_the_papers_own_gather_and_compute() -> None:
    group = "speed-up over SGD, alexnet"
    rows = {row.what: row for row in found("fft").rows if row.group == group}
    speeds = {what: round(row.predicted or 0.0, 2) for what, row in rows.items()}
    assert speeds == {"FFT": 1.73, "Top-K": 1.52, "QSGD": 1.73, "TernGrad": 1.84}
    assert not rows["FFT"].met


def test_sparse_products_take_the_time_of_the_kept_weights() -> None:
    dense, rate = nets.load("gpt3-1.3b"), 0.27 * 15.7e12
    sparse = with_sparse_products(dense)
    multiplies = [bool(old.block and old.matrix) for old in dense.layers]
    assert sum(multiplies) == 24 * 4
    for old, new, multiply in zip(dense.layers, sparse.layers, multiplies, strict=True):
        if multiply:
            assert new.forward == pytest.approx(0.1 * old.forward_flops / rate)
            assert new.backward == pytest.approx(0.1 * old.backward_flops / rate)
        else:
            assert new == old


def test_gradients_in_shards_and_gathered_parameters_have_the_bytes_of_a_sum() -> None:
    machine, net = dealt(machines.load("summit"), 8), nets.load("gpt3-1.3b")
    plans = [
        gridded(net, machine, tensor=1, pipeline=2, microbatches=2, zero=zero) for zero in (0, 1)
    ]
    whole, shards = (float(simulate(plan, 1).timeline().nbytes.sum()) for plan in plans)
    assert shards == pytest.approx(whole, rel=1e-6)  # headers


@given(
    published=st.floats(1e-6, 1e6),
    error=st.floats(-0.9, 9.0),
    bar=st.floats(0.0, 1.0),
)
def test_a_bar_is_met_when_the_error_is_not_above_it(
    published: float, error: float, bar: float
) -> None:
    predicted = published * (1 + error)
    row = PublishedRow(
        group="g", what="w", inputs="", unit="s", published=published, predicted=predicted, bar=bar
    )
    assert row.error == pytest.approx(error, abs=1e-9)
    if abs(abs(error) - bar) > 1e-9:
        assert row.met == (abs(error) < bar)


@given(where=st.floats(2e-3, 0.9), sign=st.sampled_from([-1.0, 1.0]))
def test_a_root_is_found_to_nine_digits(where: float, sign: float) -> None:
    assert base.root(lambda x: sign * (x - where), 1e-3, 1.0) == pytest.approx(where, rel=1e-9)


@given(where=st.floats(2.1, 900.0))
def test_a_crossing_of_a_line_is_found_between_whole_numbers(where: float) -> None:
    assert base.crossing(lambda n: n - where) == pytest.approx(where)


@pytest.mark.parametrize(
    ("gpus", "depth"), [(48, 4), (96, 8), (96, 2), (66, 3), (66, 6), (128, 8), (12, 12)]
)
def test_the_rings_of_all_stages_have_a_share_of_the_port(gpus: int, depth: int) -> None:
    machine, elements = dealt(machines.load("summit"), gpus), 3 * 10**8
    net = chain(depth, elements=elements // depth)
    plan = pipelined(net, machine, "1f1b", "ring:ranks+dense", stages=depth, microbatches=1)
    pipelines = gpus // depth
    rate = 12.5e9 / 6  # six ranks of a node share its port
    formula = 2 * (pipelines - 1) / pipelines * 4 * elements / depth / rate
    assert simulated(plan).collective == pytest.approx(formula, rel=0.02)


def test_the_parts_of_a_batch_are_its_time() -> None:
    found = samo.batch("GPT-3 2.7B", "SAMO", 128, 2)
    parts = sum(found) - found.seconds
    assert parts == pytest.approx(found.seconds, rel=0.01)  # coding is no part


@pytest.mark.by_day(0)
def test_the_recorded_batches_of_samo_are_what_is_predicted_today() -> None:
    """By day on 512 GPUs; the other rows by night."""
    rows = base.read(RECORDED / "samo.json").rows
    kept = {row.what: row.predicted for row in rows if row.group == "batch of GPT-3 2.7B"}
    for system, stages in (("AxoNN", 8), ("SAMO", 2), ("DeepSpeed-3D", 4), ("Sputnik", 2)):
        found = samo.batch("GPT-3 2.7B", system, 512, stages).seconds
        assert found == pytest.approx(kept[f"{system}, 512 GPUs"], rel=1e-6)  # other processors


@pytest.mark.parametrize(
    ("name", "axonn", "fitting"), [("GPT-3 XL", 4, 2), ("GPT-3 2.7B", 8, 2), ("GPT-3 6.7B", 16, 4)]
)
def test_depths_follow_from_the_memory_of_a_gpu(name: str, axonn: int, fitting: int) -> None:
    assert (samo.depth(name, "AxoNN"), samo.depth(name, "SAMO")) == (axonn, fitting)


def test_the_state_is_what_the_strategy_counts() -> None:
    assert samo.state(10**6, 0.0) == 20e6
    assert samo.state(10**6, 0.9) == pytest.approx(4.4e6)


def test_a_step_in_turn_takes_longer_than_its_compute_and_than_an_overlapped_one() -> None:
    graph, machine = nets.load("alexnet"), resized(machines.load("comet"), 2, 4)
    turn = in_turn(graph, machine, "ring+dense")
    beside = overlapped(graph, machine, dict.fromkeys(graph.tensors, "ring+dense"))
    assert computing(graph, machine) < beside < turn


@pytest.mark.parametrize("name", PRINTED)
def test_a_law_has_both_printed_densities_of_its_net(name: str) -> None:
    rows, one, all_ = PRINTED[name]
    law = Sparsity(law="zipf", density=one, rows=rows, exponent=zipf_of(name))
    assert law.after(1) == pytest.approx(one, rel=1e-12)
    assert law.after(128) == pytest.approx(all_, rel=1e-9)


def test_a_machine_that_has_summed_its_ranks_has_their_density() -> None:
    tensor = nets.load("deepfm").tensors[EMBEDDING]
    law = summed_first(tensor, 1.0, 8).sparsity
    for count in (1, 2, 4, 8, 16):
        np.testing.assert_allclose(law.after(count), tensor.sparsity.after(8 * count), rtol=1e-9)


def test_json_is_strict_and_holds_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "local", "--json"]) == 0
    (data,) = files.parse(capsys.readouterr().out, "stdout")
    assert len(data["rows"]) == len(found("local").rows)
    for row, kept in zip(data["rows"], found("local").rows, strict=True):
        assert row["met"] is True
        assert row["error"] == pytest.approx(kept.error)


def test_a_miss_is_shown_with_its_cause_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "fft"]) == 1
    lines = capsys.readouterr().out.splitlines()
    missed = [number for number, line in enumerate(lines) if "15% MISSED" in line]
    assert len(missed) == sum(row.is_result and not row.met for row in found("fft").rows)
    assert all(lines[number + 1].startswith("    missed because ") for number in missed)
    assert lines[-1] == f"fft: {found('fft').verdict}"


def test_the_table_lists_what_was_not_available(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "local"]) == 0
    text = capsys.readouterr().out
    assert "not published" in text
    assert all(row.what in text for row in found("local").rows)
    assert text.splitlines()[-2].startswith("14 numbers, 1 of them predicted and compared")


def test_an_unknown_paper_is_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "nonsense", "-o", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("commsched: no paper named 'nonsense'; known: beside, daso, espresso")
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_folder_gets_table_and_figure(tmp_path: Path) -> None:
    assert main(["reproduce", "local", "-o", str(tmp_path)]) == 0
    assert base.read(tmp_path / "local.json") == found("local")
    assert (tmp_path / "papers.md").read_text() == page([found("local")], "{}.png")
    assert (tmp_path / "local.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_of_a_folder_keeps_the_papers_of_earlier_calls(tmp_path: Path) -> None:
    other = RECORDED / "zen.json"
    (tmp_path / other.name).write_bytes(other.read_bytes())
    assert main(["reproduce", "local", "-o", str(tmp_path)]) == 0
    text = (tmp_path / "papers.md").read_text()
    assert text == page([found("local"), base.read(other)], "{}.png")


def test_a_file_that_is_no_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.json"
    path.write_text('{"format": "commsched-reproduction/1"}')
    with pytest.raises(CommschedError, match=r"wrong\.json: .*commsched-reproduction/2"):
        base.read(path)


@pytest.mark.parametrize("name", sampling.some(NAMES, 1))
def test_a_figure_has_a_line_for_every_number(name: str, tmp_path: Path) -> None:
    draw(base.read(RECORDED / f"{name}.json"), tmp_path / "figure.svg")
    text = " ".join(re.findall(r">([^<>]+)</text>", (tmp_path / "figure.svg").read_text()))
    for row in base.read(RECORDED / f"{name}.json").rows:
        shown = row.what.replace("&", "&amp;").replace("<", "&lt;")
        assert shown in text, row.what


def test_other_pictures_than_png_and_svg_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CommschedError, match=r"cannot draw '\.gif' files"):
        draw(found("local"), tmp_path / "figure.gif")
