"""Machines of many levels: what their files say, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.machine import file
from commsched.machine.change import changed
from commsched.machine.model import resized
from tests.support.trees import FOUR, STEP, TORUS, tree


def test_a_tree_is_read_as_it_was_written(tmp_path: Path) -> None:
    nvlink = replace(STEP[0], per_byte=2e-12)  # faster than any port
    one_node = tree(8, names=("node",), inside=nvlink, between=nvlink)
    for machine in (FOUR, resized(FOUR, 3), tree(4, 3, names=("node", "rack")), one_node):
        path = tmp_path / "m.json"
        file.write(path, machine)
        assert file.read(path) == machine
        assert not {"links", "lanes", "nic"} & set(json.loads(path.read_text()))


def test_other_counts_fill_racks_one_after_the_other() -> None:
    assert [level.children for level in resized(FOUR, 3).levels] == [2, 2, 2, 2]
    assert [level.children for level in resized(FOUR, 9, 6).levels] == [2, 3, 2, 5]
    assert [level.children for level in resized(FOUR, 4, 3).levels] == [1, 3, 2, 2]
    assert resized(TORUS, 2, 8).levels[0].torus == (2, 2, 2)


def test_what_is_changed_is_changed_in_the_tree() -> None:
    faster = changed(FOUR, ["nic=100 Gbit/s"])
    assert faster.levels[2].link.per_byte == pytest.approx(8e-11)
    assert faster.levels[2].nic is not None
    assert FOUR.between.per_byte / faster.between.per_byte == pytest.approx(
        FOUR.levels[3].link.per_byte / faster.levels[3].link.per_byte
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"link": None}, r"levels\[3\] 'fabric' has no link: its children could not reach"),
        ({"rails": 3}, "its 3 rails meet nowhere"),
        ({"torus": [3, 2]}, "a torus of 3 x 2 has 6 children, not 2"),
        ({"nic": {"per_node": 1, "bandwidth_GBps": 1, "source": "s"}}, "give one of them"),
        ({"name": "rack"}, "two are named 'rack'"),
        ({"oversubscription": 0.5}, "must be 0 or finite and at least 1"),
    ],
)
def test_levels_that_make_no_tree_are_refused(
    wrong: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = file.to_data(FOUR)
    data["levels"][3] |= wrong
    path = tmp_path / "m.json"
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    with pytest.raises(CommschedError, match=says):
        file.read(path)
    assert main(["show", str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_rails_of_ranks_are_refused() -> None:
    data = file.to_data(FOUR)
    data["levels"][0]["rails"] = 2
    with pytest.raises(CommschedError, match="'rails' belong to a level above"):
        file.from_data(data, "m")


def test_a_missing_port_is_asked_for_in_its_level(tmp_path: Path) -> None:
    data = file.to_data(FOUR)
    del data["levels"][2]["nic"]
    path = tmp_path / "m.json"
    path.write_text(json.dumps(data))
    with pytest.raises(CommschedError, match=r"levels\[2\] 'rack': key 'nic' is missing: do the 4"):
        file.read(path)
    data["levels"][2]["nic"] = None
    path.write_text(json.dumps(data))
    assert file.read(path).nic is None


def test_show_lists_the_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.json"
    file.write(path, FOUR)
    assert main(["show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "rack of 2 nodes: latency 5 us" in shown
    assert "ports of a rack carry 1/2 of what it can send" in shown


@pytest.mark.parametrize(
    ("level", "key", "plain", "unit"),
    [
        (0, "bandwidth_GBps", 4000, "GB/s"),
        (3, "bandwidth_GBps", 400, "GB/s"),
        (3, "latency_us", 2_000_000, "us"),
    ],
)
def test_a_number_of_a_level_that_cannot_be_meant_is_asked_about(
    level: int, key: str, plain: float, unit: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.json"
    file.write(path, FOUR)
    data = json.loads(path.read_text())
    for meant in (plain, f"{plain} {unit}"):
        data["levels"][level]["link"][key] = meant
        path.write_text(json.dumps(data))
        if meant == plain:
            with pytest.raises(CommschedError, match=f'"{plain} {unit}" if you mean it'):
                file.read(path)
    file.write(path, file.read(path))
    link = file.read(path).levels[level].link
    assert (1e-9 / link.per_byte if unit == "GB/s" else 1e6 * link.latency) == pytest.approx(plain)


def test_nodes_that_no_level_joins_are_refused() -> None:
    one = tree(8, names=("node",), inside=STEP[0], between=STEP[0])
    with pytest.raises(CommschedError, match="no level above its nodes that joins 3 of them"):
        resized(one, 3)
    assert resized(one, 1, 4).size == 4
