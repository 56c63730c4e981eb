"""A poor calibration is said to be so wherever its predictions are shown."""

import json
from dataclasses import replace

import pytest

from commsched.calibrate.session import warnings_of
from commsched.cli.main import main
from commsched.machine import file as machine_file
from commsched.machine.fabric import HeldOut
from commsched.machine.trust import LIMIT, MEMORY_CHANGE, doubts, errors_of, held_out_line, steady
from commsched.net import file as net_file
from commsched.plot.html import page_data
from commsched.timeline.file import read
from tests.support.rank_server import on_ranks
from tests.support.small_plans import graph, machine

SENTENCE = "the calibration of this machine is poor: median error 20.0% of 3 held-out exchanges"


def calibrated(*errors):
    cells = (HeldOut(name=f"c{i}", predicted=1 + e, measured=1.0) for i, e in enumerate(errors))
    return replace(machine(2, 2), held_out=tuple(cells))


def test_the_limit_is_on_the_median_of_the_errors_size():
    assert doubts(()) == doubts(errors_of(calibrated(-LIMIT, 0.5, 0.01))) == ()
    (said,) = doubts(errors_of(calibrated(-0.2, 0.2, 0.01)))
    assert said.startswith(SENTENCE)
    assert ", above 7%; calibrate again with nothing else running" in said
    assert len(f"warning: {said}") <= 160
    assert held_out_line([0.02]) == (
        "1 held-out exchange: median error 2.0%, p90 2.0%, maximum 2.0%"
    )


@pytest.mark.by_day(1)
@pytest.mark.parametrize(("errors", "poor"), [((-0.2, 0.2, 0.3), True), ((0.0, 0.2, 0.0), False)])
def test_every_command_repeats_it(errors, poor, tmp_path, capsys):
    names = ("m", "n", "plan", "p", "other")
    m, net, made, p, other = (str(tmp_path / f"{name}.json") for name in names)
    machine_file.write(m, calibrated(*errors))
    net_file.write(net, graph([3000, 40000]))
    for words in (
        ["show", m],
        ["plan", net, "--machine", m, "-o", made],
        ["show", made],
        ["simulate", made, "-o", p],
        ["show", p],
        ["plan", net, "--machine", m, "-o", other, "--planner", "ddp-25mb"],
        ["compare", p, p],
    ):
        assert main(words) == 0
        assert (f"warning: {SENTENCE}" in capsys.readouterr().out) == poor, words
    assert main(["show", made, "--json"]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    assert any(SENTENCE in text for text in warned) == poor
    assert any(SENTENCE in text for text in page_data([read(p)], None, None)["warnings"]) == poor


@pytest.mark.by_day(0)
def test_calibrate_ends_with_its_held_out_error(tmp_path):
    words = ("calibrate", "-o", str(tmp_path / "m.json"), "--seconds", "0.5")
    said = on_ranks(2, *words).output
    machine = machine_file.read(tmp_path / "m.json")
    errors = errors_of(machine)
    assert held_out_line(errors) in said
    assert ("this calibration is poor" in said) == bool(doubts(errors))
    assert ("times as fast at the end" in said) == (not steady(machine.measured[MEMORY_CHANGE]))


def test_memory_that_became_slower_or_faster_is_told():
    for change in (0.5, 0.9, 1.1, 2.0):
        on = replace(machine(1, 2), measured={MEMORY_CHANGE: change})
        told = [text for text in warnings_of(on) if f"memory was {change:g} times as fast" in text]
        assert bool(told) == (change in (0.5, 2.0))


@pytest.mark.by_day(0)
def test_a_calibration_of_one_rank_says_as_json_that_nothing_was_exchanged(tmp_path):
    path = tmp_path / "m.json"
    ended = on_ranks(1, "calibrate", "-o", str(path), "--seconds", "0.2", "--json")
    told = json.loads(ended.output[ended.output.index("{") :])  # after what stderr says
    (warning,) = told["warnings"]
    assert warning.startswith("1 rank exchanges nothing")
    assert (told["machine"], told["ranks"], told["held_out_errors"]) == (str(path), 1, [])
    assert machine_file.read(path).size == 1
