"""Tensor-parallel ranks under MPI: 2 x 2 x 2 ranks learn what fewer do, and go on after a stop."""

from dataclasses import replace

import pytest

from commsched.cli.main import main
from commsched.net import file as net_file
from commsched.timeline import file as timeline_file
from tests.support.rank_server import on_ranks
from tests.test_train import train

WORDS = ("--net", "gpt:16:2:2", "--batch", "16", "--optimizer", "adam", "--evaluate", "4")
DEGREES = ("--strategy", "3d", "--param", "tensor=2", "--param", "microbatches=2", "--param")


@pytest.fixture(scope="module")
def one():
    return train(1, *WORDS, "--steps", "4", "--strategy", "sync", "--method", "ring+dense")


def planned(folder, *params):
    """Return a plan for 8 ranks whose layers take 1 ms each, however long they take under load."""
    net, plan = (str(folder / f"{name}.json") for name in ("net", "plan"))
    assert main(["profile", WORDS[1], "--batch", "4", "--optimizer", "adam", "-o", net]) == 0
    found = net_file.read(net)
    layers = tuple(replace(x, forward=1e-3, backward=1e-3) for x in found.layers)
    net_file.write(net, replace(found, layers=layers))
    words = ["plan", net, "--machine", "localhost", "--nodes", "1", "--lanes", "8", *DEGREES]
    assert main([*words, *params, "--param", "optimizer=adam", "-o", plan]) == 0
    return plan


def test_eight_ranks_end_with_the_bits_of_four_and_the_loss_of_one(one, tmp_path):
    """Two stages and shards change no bit; sums of two parts round otherwise than one product."""
    measured = str(tmp_path / "measured.json")
    plan = planned(tmp_path, "pipeline=2", "--param", "zero=1")
    eight = train(8, *WORDS, *DEGREES[:2], "--plan", plan, "--steps", "4", "-o", measured)
    four = train(4, *WORDS, *DEGREES, "pipeline=1", "--steps", "4")
    assert eight["parameters"] == four["parameters"]
    for key in ("loss", "held_out_loss"):
        assert eight[key] == pytest.approx(one[key], rel=1e-6)
    ranks = {span.rank for span in timeline_file.read(measured) if "/t0/forward/" in span.name}
    assert ranks == set(range(8))


def test_ranks_that_share_tokens_end_with_the_loss_of_one(one):
    shared = ("pipeline=2", "--param", "zero=1", "--param", "sequence=1", "--steps", "4")
    eight = train(8, *WORDS, *DEGREES, *shared)
    for key in ("loss", "held_out_loss"):
        assert eight[key] == pytest.approx(one[key], rel=1e-6)


@pytest.mark.parametrize("sequence", [0, 1])
def test_a_run_sends_the_bytes_that_are_predicted_operation_by_operation(sequence, tmp_path):
    plan, measured, predicted = (str(tmp_path / f"{x}.json") for x in ("plan", "run", "simulated"))
    words = ["plan", "gpt3-1.3b", "--machine", "localhost", "--nodes", "1", "--lanes", "8"]
    words += [*DEGREES, "pipeline=2", "--param", "zero=1", "--scale", "1.25e-4", "-o", plan]
    words += ["--param", f"sequence={sequence}"]
    assert main(words) == 0
    assert main(["simulate", plan, "--steps", "3", "-o", predicted]) == 0
    done = on_ranks(8, "run", plan, "--steps", "3", "-o", measured, seconds=200)
    assert done.status == 0, done.output
    rows = [
        {
            (s.rank, s.step, s.stream, s.name): s.nbytes
            for s in timeline_file.read(path)
            if s.step < 3
        }
        for path in (predicted, measured)
    ]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("sequence", [0, 1])
def test_two_ranks_go_on_from_their_parts_and_shards(sequence, tmp_path):
    shared = ("--param", f"sequence={sequence}")
    words = (*WORDS, "--strategy", "tensor", "--param", "zero=1", *shared, "--steps")
    found = train(2, *words, "4")
    kept = ("--checkpoint", str(tmp_path), "--every", "1")
    train(2, *words, "2", *kept)
    assert train(2, *words, "4", *kept, "--resume")["parameters"] == found["parameters"]
