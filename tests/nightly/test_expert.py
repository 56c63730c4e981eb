"""Experts on ranks under MPI: a run sends what is predicted, and learns what one process does."""

import pytest

from commsched.cli.main import main
from commsched.timeline import file as timeline_file
from tests.support.rank_server import on_ranks
from tests.test_train import train

WORDS = ("--net", "moe:16:4:2:2", "--batch", "16", "--optimizer", "momentum", "--evaluate", "4")
EXPERT = ("--strategy", "expert", "--param")


@pytest.mark.parametrize("more", [("send=bf16", "zipf=1"), ("send=quant:8", "capacity=1")])
@pytest.mark.parametrize(("expert", "nodes"), [("4", "1"), ("2", "2")])
def test_a_run_sends_the_bytes_that_are_predicted_operation_by_operation(
    expert, nodes, more, tmp_path
):
    plan, measured, predicted = (str(tmp_path / f"{x}.json") for x in ("plan", "run", "simulated"))
    words = ["plan", "gpt-moe-8", "--machine", "localhost", "--strategy", "expert"]
    words += ["--nodes", nodes, "--lanes", str(4 // int(nodes)), "--scale", "1e-3"]
    for param in (f"expert={expert}", *more):
        words += ["--param", param]
    assert main([*words, "-o", plan]) == 0
    assert main(["simulate", plan, "--steps", "3", "-o", predicted]) == 0
    done = on_ranks(4, "run", plan, "--steps", "3", "-o", measured, seconds=200)
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
    sends = [n for (*_, name), n in rows[1].items() if "/dispatch/" in name and n]
    assert sends


@pytest.fixture(scope="module")
def one():
    return train(1, *WORDS, "--steps", "6", "--strategy", "sync", "--method", "ring+dense")


@pytest.mark.parametrize(("ranks", "expert"), [(2, 2), (4, 4), (4, 2), (8, 4)])
def test_ranks_end_with_the_loss_of_one_process(one, ranks, expert, tmp_path):
    """Sums of several ranks round otherwise than those of one."""
    measured = str(tmp_path / "measured.json")
    found = train(ranks, *WORDS, *EXPERT, f"expert={expert}", "--steps", "6", "-o", measured)
    for key in ("loss", "held_out_loss"):
        assert found[key] == pytest.approx(one[key], rel=1e-5)
    ranks_that_send = {s.rank for s in timeline_file.read(measured) if "/dispatch/" in s.name}
    assert ranks_that_send == set(range(ranks))


def test_16_bits_learn_nearly_the_same():
    words = (*WORDS, "--steps", "6", "--precision", "fp16")
    one = train(1, *words, "--strategy", "sync", "--method", "ring+dense")
    assert train(2, *words, *EXPERT, "expert=2")["loss"] == pytest.approx(one["loss"], rel=1e-2)


def test_two_ranks_go_on_from_their_experts(tmp_path):
    words = (*WORDS, *EXPERT, "expert=2", "--steps")
    found = train(2, *words, "4")
    kept = ("--checkpoint", str(tmp_path), "--every", "1")
    train(2, *words, "2", *kept)
    assert train(2, *words, "4", *kept, "--resume")["parameters"] == found["parameters"]
