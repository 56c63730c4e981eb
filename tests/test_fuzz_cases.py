"""The fuzzer: each file that once broke a command, and a few of the day's."""

from pathlib import Path

import pytest

from tests.nightly.fuzz.case import KEPT, Case, drawn, kept, tried, wrong
from tests.nightly.fuzz.targets import SLOW, TARGETS, good_files

FEW = 60  # cases in a daily run


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return good_files(tmp_path_factory.mktemp("good"))


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_file_that_broke_a_command_no_longer_does(path, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tried(kept(path), good, tmp_path) == ""


@pytest.mark.by_day(23)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_good_file_of_each_kind_is_taken(target, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if target.name != SLOW:
        case = Case(target, good[target.kind].read_bytes())
        assert tried(case, good, tmp_path) == ""


def test_some_broken_files_break_nothing(good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    contents = {kind: path.read_bytes() for kind, path in good.items()}
    cases = [drawn(f"daily:{n}", contents) for n in range(FEW)]
    assert cases == [drawn(f"daily:{n}", contents) for n in range(FEW)]  # a seed is enough
    assert [said for case in cases if (said := tried(case, good, tmp_path))] == []


def test_a_failing_case_comes_back_from_its_file(tmp_path):
    case = Case(TARGETS[0], b"\x00\xff{", "")
    assert kept(case.keep("Traceback", tmp_path)) == case


def test_what_counts_as_wrong():
    sentence = "commsched: f.json: not valid JSON\n"
    assert wrong(2, "", sentence) == wrong(0, "a result\n", "") == ""
    for status, out, error in (
        (3, "", sentence),
        (-9, "", ""),
        (2, "", ""),
        (2, "", "Traceback (most recent call last):\n"),
        (2, "", sentence * 500),
        (0, "\x1b[31m", ""),
    ):
        assert wrong(status, out, error)
