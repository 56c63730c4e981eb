"""Sizes that take too much are refused with an estimate, unless --force-size is given."""

import argparse
import re

import pytest

from commsched.cli import size
from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.exchange.registry import legal_methods
from commsched.machine import file as machine_file
from commsched.machine.model import resized
from commsched.plan import file
from commsched.planner.limits.memory import needed
from tests.support.rank_server import on_ranks
from tests.support.small_plans import graph, machine, plan

FORCED, ASKED = argparse.Namespace(force_size=True), argparse.Namespace(force_size=False)


def test_more_than_an_hour_or_a_memory_needs_a_word():
    fits = size.Size(size.MOST_SECONDS, size.MOST_BYTES)
    size.check(ASKED, "--steps 1", fits)
    for much in (fits._replace(seconds=3601.0), fits._replace(nbytes=16.1e9)):
        with pytest.raises(CommschedError, match=r"--steps 1 would take about .* needs --force-si"):
            size.check(ASKED, "--steps 1", much)
        size.check(FORCED, "--steps 1", much)


def test_an_estimate_grows_with_steps_ranks_and_spans():
    made = plan(graph([8]), machine(lanes=2), ["ring+dense"])
    one, ten, drawn = (size.simulation(made, *n) for n in ((1, 0), (10, 0), (10, 2)))
    assert ten.seconds == pytest.approx(10 * one.seconds)
    assert ten.nbytes == pytest.approx(10 * one.nbytes)
    assert drawn.seconds > ten.seconds
    assert drawn.nbytes > ten.nbytes


def test_a_thousand_million_steps_are_refused_at_once(tmp_path, capsys):
    path = tmp_path / "plan.json"
    file.write(path, plan(graph([8]), machine(lanes=2), ["ring+dense"]))
    assert main(["simulate", str(path), "--steps", "1000000000"]) == 2
    said = capsys.readouterr().err
    assert "--steps 1000000000 would take about" in said
    assert "more than 1 h or 16 GB needs --force-size" in said
    assert main(["simulate", str(path), "--steps", "3", "--force-size"]) == 0


def test_a_run_of_many_steps_is_refused_on_all_ranks_at_once(tmp_path):
    made = plan(graph([8]), machine(lanes=2), ["ring+dense"])
    path = tmp_path / "plan.json"
    file.write(path, made)
    words = ["run", str(path), "-o", str(tmp_path / "m.json"), "--steps", "1" + "0" * 400]
    ended = on_ranks(made.machine.size, *words)
    assert ended.status == 2
    assert "0 would take about" in ended.output


def test_a_training_of_many_steps_is_refused_before_its_first_step(tmp_path):
    words = ["train", "--net", "mlp:8:2", "--batch", "8", "--method", "ring+dense"]
    refused = on_ranks(2, *words, "--steps", "1" + "0" * 15)
    assert refused.status == 2
    assert "commsched: --steps 1000000000000000 would take about" in refused.output
    assert "more than 1 h or 16 GB needs --force-size" in refused.output
    done = on_ranks(2, *words, "--steps", "2", "--force-size")
    assert done.status == 0, done.output


@pytest.mark.by_day(0)
@pytest.mark.parametrize(
    "words",
    [
        "price 25000000 --machine p3dn.24xlarge",
        "plan resnet50 --machine p3dn.24xlarge -o made",
        "plan resnet50 --machine p3dn.24xlarge -o made --time-limit 0",
        "sweep --net resnet50 --machine p3dn.24xlarge -o made.csv",
    ],
)
def test_a_search_among_320000_ranks_is_refused_with_its_estimate(words, tmp_path, capsys):
    words = words.replace("made", str(tmp_path / "made.json"))
    assert main([*words.split(), "--nodes", "40000"]) == 2
    said = capsys.readouterr().err
    assert re.match(r"commsched: .* would take about [0-9.]+ h and [0-9.]+ [GM]B of memory; ", said)
    assert said.endswith("more than 1 h or 16 GB needs --force-size\n")
    assert list(tmp_path.iterdir()) == []


def test_the_messages_of_a_large_machine_are_followed_from_smaller_ones(monkeypatch):
    """What is followed is within the estimate's factor of three of what is counted."""
    on = machine_file.load("p3dn.24xlarge")
    for nodes in (192, 500, 512):
        large = resized(on, nodes)
        methods = list(legal_methods(large.everyone))
        monkeypatch.setattr(size, "COUNTED", 2**20)
        exact = size.pricing(large, methods).seconds
        monkeypatch.setattr(size, "COUNTED", large.size // 4)
        assert 1 / 3 < size.pricing(large, methods).seconds / exact < 3


@pytest.mark.parametrize("words", ["profile gpt:4096:64 -o made", "train --net gpt:4096:64"])
def test_a_net_beyond_the_memory_is_refused_before_it_is_made(words, tmp_path, capsys):
    words = words.replace("made", str(tmp_path / "made.json"))
    if words.startswith("train"):
        said = on_ranks(1, *words.split()).output
    else:
        assert main(words.split()) == 2
        said = capsys.readouterr().err
    assert "gpt:4096:64 would take about 103.1 GB of memory" in said


def test_a_training_needs_the_memory_of_a_nodes_ranks():
    made = plan(graph([2**20]), machine(nodes=2, lanes=3), ["ring+dense"])
    assert size.training(made, 0) == size.Size(0.0, 3 * needed(made))
    assert needed(made) > 4 * 2**20
