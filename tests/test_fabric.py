"""The fabric of a calibration or run: what is told of it, and who says that it is another one."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsched import records
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.fabric import Fabric, HeldOut, shape
from commsched.machine.model import resized
from commsched.plan import file as plan_file
from commsched.simulate.engine import simulate
from commsched.simulate.report import lines, report
from commsched.timeline.compare import compare
from commsched.timeline.cycles import totals
from commsched.timeline.file import read, write
from commsched.timeline.header import header_from_data
from commsched.timeline.report import comparison_data, comparison_table, rivals_data, rivals_table
from commsched.timeline.spread import interval, rivals
from commsched.timeline.summary import lines as summary_lines
from commsched.timeline.summary import summary
from tests.support.small_plans import graph, machine, plan

HERE = Fabric(
    hosts=("h0", "h1"),
    ranks=(2, 2),
    mpi="MPICH 5.0.2",
    transport="ch4:ofi tcp",
    cores=8,
    processor="Xeon",
)
CELLS = tuple(
    HeldOut(name=f"cell {i}", predicted=1.0 + error, measured=1.0)
    for i, error in enumerate([-0.1, 0.02, 0.05])
)
CALIBRATED = replace(machine(2, 2), fabric=HERE, held_out=CELLS)
NET = graph([200_000, 30_000], 1e-4)


def predicted(on=CALIBRATED, method="ring+dense"):
    return simulate(plan(NET, on, [method]), 3)


def measured(prediction, **meta):
    """A run that went as predicted."""
    return replace(prediction.timeline(), header=header_from_data("measured", meta))


def data(fabric):
    return records.to_data(fabric)


# what differs

names = st.text("abc", min_size=1, max_size=3)
fabrics = st.lists(
    st.tuples(names, st.integers(1, 4)), min_size=1, unique_by=lambda x: x[0]
).flatmap(
    lambda hosts: st.builds(
        Fabric,
        hosts=st.just(tuple(name for name, _ in hosts)),
        ranks=st.just(tuple(ranks for _, ranks in hosts)),
        mpi=names,
        transport=names,
        cores=st.integers(1, 4),
        processor=names,
    )
)


@given(a=fabrics, b=fabrics)
def test_fabrics_differ_exactly_where_they_are_not_equal(a, b):
    assert (a.differences(b) == []) is (a == b)
    assert len(a.differences(b)) == len(b.differences(a))
    assert records.read(Fabric, json.loads(json.dumps(data(a))), "here") == a


def test_every_difference_is_a_sentence():
    other = Fabric(
        hosts=("h0", "x", "y"),
        ranks=(2, 2, 1),
        mpi="Open MPI 5.0.11",
        transport="ob1 tcp,sm,self",
        cores=2,
        processor="EPYC",
    )
    assert HERE.differences(other) == [
        "calibrated as 2 nodes x 2 ranks, run as 3 nodes with 2, 2, 1 ranks",
        "calibrated on host h1, run on host x",
        "calibrated with MPICH 5.0.2, run with Open MPI 5.0.11",
        "calibrated over ch4:ofi tcp, run over ob1 tcp,sm,self",
        "calibrated with 8 usable cores, run with 2 usable cores",
        "calibrated on Xeon, run on EPYC",
    ]
    swapped = replace(HERE, hosts=("h1", "h0"))
    assert swapped.differences(HERE, ("run", "run")) == [
        "run on host h1, run on host h0, and 1 more differ"
    ]
    assert shape((1,)) == "1 node x 1 rank"
    assert shape((1, *[2] * 20)) == "21 nodes with 1, 2, 2, 2, 2, 2, 2, 2, ... ranks"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hosts": []}, "fabric: 0 hosts with 2 counts of ranks"),
        ({"hosts": ["a"]}, "fabric: 1 host with 2 counts of ranks"),
        ({"hosts": ["a", "a"]}, "fabric: a host stands twice"),
        ({"hosts": ["a", ""]}, "fabric: host '': a name has 1 to 200"),
        ({"mpi": "a\nb"}, r"fabric: mpi 'a\\nb': a name has"),
        ({"cores": 0}, "fabric: cores must be 1 to 1048576, got 0"),
        ({"ranks": [2, 10**30]}, "fabric: ranks must be 1 to 1048576, got 1000"),
        ({"cores": 1.5}, "expected `int`"),
        ({"speed": 1}, "unknown field `speed`"),
    ],
)
def test_a_fabric_that_cannot_be_is_refused(change, message):
    with pytest.raises(CommschedError, match=f"^here: .*{message}"):
        records.read(Fabric, data(HERE) | change, "here")


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), 1e-9, 1e9])
def test_a_held_out_cell_without_a_sensible_error_is_refused(wrong):
    for values in ((wrong, 1.0), (1.0, wrong)):
        with pytest.raises(CommschedError, match="held-out cell 'x': predicted and measured sec"):
            HeldOut(name="x", predicted=values[0], measured=values[1])


# predictions


def test_a_prediction_carries_the_residuals_and_the_fabric_of_its_machine(tmp_path):
    found = predicted().timeline()
    assert found.header.residuals == pytest.approx([-0.1, 0.02, 0.05])
    assert found.header.fabric == HERE
    assert found.warnings == ()
    assert report(predicted())["interval_held_out_errors"] == 3
    write(tmp_path / "p.json", found)
    assert read(tmp_path / "p.json").header.fabric == HERE
    bare = predicted(machine(2, 2)).timeline()
    assert not {"residuals", "fabric", "warnings"} & bare.header.to_data().keys()


def test_the_report_says_how_sure_the_iteration_is():
    prediction = predicted()
    found = report(prediction)
    t = prediction.timeline()
    sure = interval(totals(t), t.header.residuals)
    low, high = found["interval_p10_seconds"], found["interval_p90_seconds"]
    assert (low, high) == (sure.low, sure.high)
    assert low < found["iteration_median_seconds"] < high
    assert lines(found)[2] == (
        f"p10 to p90 of the iteration of a run: {sure}; that is the spread of the steps and 3"
        " held-out errors of calibration"
    )
    without = report(predicted(machine(2, 2)))
    assert without["interval_held_out_errors"] == 0
    assert not any("p10" in line for line in lines(without))


def test_simulating_another_shape_than_was_calibrated_says_so(tmp_path, capsys):
    made = plan(NET, resized(CALIBRATED, 3, 2), ["ring+dense"])
    plan_file.write(tmp_path / "plan.json", made)
    sentence = "the machine was calibrated as 2 nodes x 2 ranks, not as 3 nodes x 2 ranks"
    words = ["simulate", str(tmp_path / "plan.json")]
    assert main([*words, "-o", str(tmp_path / "p.json")]) == 0
    assert f"warning: {sentence}: how far off" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["warnings"][0].startswith(sentence)
    assert told["interval_held_out_errors"] == 0
    found = read(tmp_path / "p.json")
    assert found.warnings == tuple(told["warnings"])
    run = replace(found, header=header_from_data("measured", found.header.to_data()))
    assert f"warning: {sentence}" in comparison_table(compare(found, run))


# runs


def test_comparing_with_a_run_on_another_fabric_warns_once():
    prediction = predicted()
    there = replace(HERE, mpi="Open MPI 5.0.11", cores=2)
    said = HERE.differences(there)
    run = measured(prediction, fabric=data(there), other_fabric=said)
    found = compare(prediction.timeline(), run)
    assert list(found.warnings) == said
    assert comparison_data(found)["warnings"] == said
    text = comparison_table(found)
    assert "warning: calibrated with MPICH 5.0.2, run with Open MPI 5.0.11" in text
    old = compare(prediction.timeline(), measured(prediction, other_fabric=said))
    assert list(old.warnings) == said
    two = compare(measured(prediction, fabric=data(HERE)), run).warnings
    assert "run with MPICH 5.0.2, run with Open MPI 5.0.11" in two


def test_comparing_with_a_run_on_the_same_fabric_warns_of_nothing():
    prediction = predicted()
    run = measured(prediction, fabric=data(HERE), other_fabric=[])
    assert compare(prediction.timeline(), run).warnings == ()
    assert compare(prediction.timeline(), measured(prediction)).warnings == ()


def test_a_run_on_another_fabric_says_so_in_its_summary():
    prediction = predicted()
    run = measured(prediction, placement=["a"], other_fabric=["b"])
    assert summary(run)["other_fabric"] == ["b"]
    assert summary_lines(summary(run))[-2:] == ["warning: a", "warning: b"]


def test_plans_for_machines_of_one_name_calibrated_elsewhere_warn():
    other = replace(CALIBRATED, fabric=replace(HERE, hosts=("h0", "x")))
    a, b = predicted().timeline(), predicted(other, "ring+fp16").timeline()
    found = rivals(a, b)
    assert found.warnings == ("calibrated on host h1, calibrated on host x",)
    assert rivals_data(found)["warnings"] == list(found.warnings)
    assert "warning: calibrated on host h1" in rivals_table(found)


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        (
            {"fabric": 3},
            r"meta of the measured timeline: expected `object \| null`, got `int` - at `.fabric`",
        ),
        ({"fabric": data(HERE) | {"cores": 0}}, "meta of the measured timeline: fabric: cores"),
        (
            {"other_fabric": "x"},
            r"expected `array \| null`, got `str` - at `.other_fabric`",
        ),
    ],
)
def test_a_damaged_fabric_of_a_timeline_is_one_sentence(meta, message):
    prediction = predicted()
    with pytest.raises(CommschedError, match=message):
        compare(prediction.timeline(), measured(prediction, **meta))


# show


def test_a_machine_is_shown_with_its_fabric_and_its_held_out_errors(tmp_path, capsys):
    machine_file.write(tmp_path / "m.json", CALIBRATED)
    assert main(["show", str(tmp_path / "m.json")]) == 0
    *_, where, how = capsys.readouterr().out.splitlines()
    assert where == (
        "calibrated on h0, h1 as 2 nodes x 2 ranks, 8 cores usable, Xeon; MPICH 5.0.2 over"
        " ch4:ofi tcp"
    )
    assert how == "3 held-out exchanges: median error 5.0%, p90 9.0%, maximum 10.0%"
