"""Pictures of a study's table: which rows are drawn, and how."""

import re

import pytest

import commsched as cs
from commsched.errors import CommschedError
from commsched.machine import file as machine_file
from commsched.machine.change import changed
from commsched.plot.study import StudyPicture, draw
from commsched.study.cells import product_of
from commsched.study.run import planned


@pytest.fixture(scope="module")
def study():
    axes = {"net": "lstm", "machine": "p3.16xlarge", "nodes": "2", "density": ["1%", "5%"]}
    axes |= {"planner": ["ddp-25mb", "per-tensor"], "bandwidth": ["10gbit", "12.5gbit"]}
    return planned(product_of(axes, "study"))


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ({"bandwidth": "20gbit"}, "--where bandwidth=20gbit: no row has that; .* are 10, 12.5"),
        ({"density": "2"}, "--where density=2: no row has that; .* are 0.01, 0.05"),
        (
            {"net": "vgg16"},
            "--where net=vgg16: no row has that; the values of rows with a plan are lstm",
        ),
    ],
)
def test_a_choice_that_no_row_has_is_named_with_the_values_there_are(
    where, sentence, study, tmp_path
):
    with pytest.raises(CommschedError, match=sentence):
        draw(study, tmp_path / "a.svg", StudyPicture(where=where))


def test_choices_that_no_row_has_together_are_named(study, tmp_path):
    where = {"planner": "ddp-25mb", "density": "5%"}
    some = [one for one in study if (one["planner"] == "ddp-25mb") == (one["density"] == 0.01)]
    with pytest.raises(CommschedError, match=r"planner=ddp-25mb density=5%: .* no row has all"):
        draw(some, tmp_path / "a.svg", StudyPicture(where=where))


@pytest.mark.parametrize("rate", ["12.5gbit", "12.5", "12500 Mbit/s"])
@pytest.mark.parametrize("density", ["1%", "0.01"])
def test_a_choice_may_have_its_unit(rate, density, study, tmp_path):
    path = tmp_path / "a.svg"
    where = {"bandwidth": rate, "density": density}
    draw(study, path, StudyPicture(where=where, x="bandwidth", y="planner", value="step"))
    assert ">12.5</text>" in path.read_text()
    assert ">10</text>" not in path.read_text()


def test_files_of_one_name_are_told_apart_by_their_paths(tmp_path):
    found = {}
    for folder, rate in (("a", "10"), ("b", "100")):
        path = tmp_path / folder / "lab.json"
        path.parent.mkdir()
        made = changed(machine_file.load("p3.16xlarge"), ["nodes=2", f"nic={rate} Gbit/s"])
        machine_file.write(path, made)
        found[str(path)] = str(path).removesuffix(".json")
    words = {"planners": "ddp-25mb", "scale": ["1", "2"]}
    several = cs.sweep("lstm", list(found), **words)
    assert {one["machine"] for one in several.rows} == set(found.values())
    (path, _) = found
    assert {one["machine"] for one in cs.sweep("lstm", path, **words).rows} == {"lab"}


@pytest.mark.parametrize("shown", [{}, {"y": "planner", "value": "step"}])
def test_rows_that_a_picture_cannot_tell_apart_are_refused(shown, study, tmp_path):
    some = [one for one in study if one["planner"] == "ddp-25mb" and one["density"] == 0.01]
    twice = {**some[0], "cell": "other", "step_seconds": 2 * some[0]["step_seconds"]}
    wanted = StudyPicture(x="bandwidth", **shown)
    draw([*some, some[0]], tmp_path / "a.svg", wanted)
    with pytest.raises(CommschedError, match=f"rows {some[0]['cell']} and other differ in step"):
        draw([*some, twice], tmp_path / "a.svg", wanted)


@pytest.mark.parametrize("shown", [{}, {"y": "planner", "value": "step"}])
@pytest.mark.parametrize(("nets", "width", "turn"), [(2, 7.0, 0), (12, 7.0, 45), (12, 2.0, 90)])
def test_names_that_would_meet_under_a_panel_turn(shown, nets, width, turn, study, tmp_path):
    path, names = tmp_path / "a.svg", [f"a long name {net}" for net in range(nets)]
    some = [one for one in study if (one["density"], one["planner"]) == (0.01, "per-tensor")][:1]
    rows = [{**one, "net": name} for one in some for name in names]
    draw(rows, path, StudyPicture(x="net", width=width, **shown))
    text = path.read_text()
    turned = [re.search(rf'rotate\(-([\d.]+)[^"]*">{name}<', text) for name in names]
    assert {float(found[1]) for found in turned if found} == {turn}


@pytest.mark.parametrize(("title", "above"), [(None, ["step in ms"]), ("", []), ("mine", ["mine"])])
def test_a_map_has_the_title_that_is_asked_for(title, above, study, tmp_path):
    path, where = tmp_path / "a.svg", {"density": "1%"}
    draw(study, path, StudyPicture(y="planner", value="step", where=where, title=title))
    texts = re.findall(r">([^<>\n]+)</text>", path.read_text())
    assert [text for text in texts if text in ("step in ms", "mine")] == above


def test_a_price_of_a_machine_that_no_row_has_is_refused(study, tmp_path):
    wanted = StudyPicture(pareto="money", prices={"p3.16xlarge": 24.0, "sumit": 10.0})
    with pytest.raises(CommschedError, match="--price-per-hour sumit: no row is of that machine"):
        draw(study, tmp_path / "a.svg", wanted)


def test_counts_of_seven_digits_are_told_apart(study, tmp_path):
    rows = [{**study[0], "ranks": ranks} for ranks in (1048576, 1048577)]
    draw(rows, tmp_path / "a.svg", StudyPicture(where={"ranks": "1048576"}))
    with pytest.raises(CommschedError, match=r"no row has that; .* are 1048576, 1048577$"):
        draw(rows, tmp_path / "b.svg", StudyPicture(where={"ranks": "1.04858e+06"}))


def test_a_map_over_what_is_no_axis_is_refused(study, tmp_path):
    with pytest.raises(CommschedError, match=r"'step' is none of bandwidth, ranks, .*give --x"):
        draw(study, tmp_path / "a.svg", StudyPicture(value="step"))


@pytest.mark.parametrize("x", ["bandwidth", "ranks"])
def test_machines_that_a_number_of_the_axis_tells_apart_have_panels_of_their_own(x, tmp_path):
    axes = {"net": "lstm", "machine": ["p3.16xlarge", "summit"], "nodes": "2"}
    rows = planned(product_of(axes | {"planner": ["ddp-25mb", "per-tensor"]}, "study"))
    draw(rows, tmp_path / "a.svg", StudyPicture(x=x))
    text = (tmp_path / "a.svg").read_text()
    assert ">p3.16xlarge</text>" in text
    assert ">summit</text>" in text
