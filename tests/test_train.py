"""Training on real ranks: equal losses for any number of them, the same bits run after run."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from commsched import training_log as training
from commsched.cli.main import main
from commsched.timeline import file as timeline_file
from tests.support import sampling
from tests.support.jobs import Ended
from tests.support.rank_server import on_ranks

TRAIN = [sys.executable, "-m", "commsched", "train"]
LIMIT = 120  # s
WORDS = ("--net", "words:8:300", "--batch", "24", "--steps", "12", "--rate", "0.05")
DENSE = ("--method", "ring+dense")


def started(ranks: int, *arguments: str) -> Ended:
    return on_ranks(ranks, "train", *arguments, seconds=LIMIT)


def train(ranks: int, *arguments: str) -> dict[str, Any]:
    """The result of a training that ends well."""
    done = started(ranks, *arguments, "--json")
    assert done.status == 0, done.output
    found: dict[str, Any] = json.loads(done.output[done.output.index("{") :])
    return found


def losses(path: Path) -> list[float]:
    lines = training.read(path)
    return [line.loss for line in lines if isinstance(line, training.LogRow)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> list[float]:
    path = tmp_path_factory.mktemp("alone") / "log.jsonl"
    train(1, *WORDS, *DENSE, "--log", str(path))
    return losses(path)


@pytest.mark.by_day(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_share_a_batch_learn_what_one_learns(ranks, alone, tmp_path):
    path = tmp_path / "log.jsonl"
    found = train(ranks, *WORDS, *DENSE, "--log", str(path))
    # The mean of the ranks' gradients is that of the whole batch, but for float32 rounding, 6e-8
    # each time, which grows over 12 steps.
    assert losses(path) == pytest.approx(alone, rel=1e-5)
    assert len(alone) == 12
    assert alone[-1] < alone[0]
    assert found["ranks"] == ranks


@pytest.fixture(scope="module")
def dense() -> str:
    """The parameters that two ranks end with."""
    return str(train(2, *WORDS, *DENSE)["parameters"])


def test_a_training_gives_the_same_bits_again(dense):
    assert train(2, *WORDS, *DENSE)["parameters"] == dense
    assert train(2, *WORDS, *DENSE, "--seed", "1")["parameters"] != dense


@pytest.mark.by_day(2)
@pytest.mark.parametrize("method", ["zen", "all-gather+coo", "balanced", "split-all-gather"])
def test_a_lossless_method_gives_the_bits_of_dense_sums(method, dense):
    """Two numbers have the same sum in any order: not a bit may differ with two ranks."""
    forced = ("--force", f"embedding.weight={method}")
    assert train(2, *WORDS, *DENSE, *forced)["parameters"] == dense


def test_zen_learns_what_dense_sums_learn_on_four_ranks(alone, tmp_path):
    path = tmp_path / "log.jsonl"
    train(4, *WORDS, *DENSE, "--force", "embedding.w*=zen", "--log", str(path))
    assert losses(path) == pytest.approx(alone, rel=1e-5)  # rounding, as above


@pytest.mark.by_day(0)
def test_when_updates_are_made_does_not_change_a_bit(dense, tmp_path):
    """Before the next forward of the layer that reads them, or at the end of the step."""
    net, plan = tmp_path / "net.json", tmp_path / "plan.json"
    assert main(["profile", "words:8:300", "--batch", "12", "-o", str(net)]) == 0
    found = {}
    for overlap in ("forward", "backward"):
        words = ["plan", str(net), "--machine", "localhost", "--nodes", "1", "--lanes", "2"]
        words += ["--planner", "per-tensor", "--param", f"overlap={overlap}", "-o", str(plan)]
        assert main(words) == 0
        found[overlap] = train(2, *WORDS, "--plan", str(plan))["parameters"]
    assert found["forward"] == found["backward"] == dense


def test_without_plan_and_method_one_is_planned_for_this_many_ranks():
    done = started(2, "--net", "words:8:300", "--batch", "24", "--steps", "12", "--rate", "0.05")
    assert done.status == 0, done.output
    assert "words:8:300, 2 ranks, 12 steps\n" in done.output
    assert "all ranks hold the same parameters: " in done.output


@pytest.mark.parametrize("net", sampling.some(["mlp:32:1", "cnn:4"], 1))
def test_the_digits_are_learnt(net):
    words = ("--net", net, "--epochs", "6", "--batch", "32", "--optimizer", "adam")
    found = train(2, *words, "--method", "ring+fp16")
    assert found["held_out_accuracy"] > 0.85
    assert found["steps"] == 6 * (1437 // 32)


@pytest.mark.by_day(0)
def test_digits_are_learnt_in_16_bits():
    words = ("--net", "mlp:32:1", "--epochs", "6", "--batch", "32", "--optimizer", "adam")
    found = train(2, *words, *DENSE, "--precision", "fp16")
    assert found["held_out_accuracy"] > 0.85


LOSSY = ["all-gather+topk:0.05", "all-gather+fft:0.15", "powersgd:2"]


@pytest.mark.by_day(0)
@pytest.mark.parametrize("method", sampling.some(LOSSY, 1))
def test_a_small_gpt_learns_with_a_lossy_method(method, tmp_path):
    path = tmp_path / "log.jsonl"
    words = ("--net", "gpt:16:1:2", "--batch", "16", "--steps", "40", "--optimizer", "adam")
    found = train(2, *words, "--method", method, "--log", str(path), "--evaluate", "20")
    first = losses(path)[0]
    assert found["held_out_loss"] < 0.85 * first
    held = [line.step for line in training.read(path) if isinstance(line, training.HeldOutRow)]
    assert held == [19, 39]


def test_the_timeline_has_the_programs_operations_and_compares(tmp_path):
    net, plan, measured = (tmp_path / f"{n}.json" for n in ("net", "plan", "measured"))
    predicted, log, figure = (tmp_path / n for n in ("predicted.json", "log.jsonl", "curves.svg"))
    main(["profile", "gpt:16:1:2", "--batch", "4", "-o", str(net)])
    words = ["plan", str(net), "--machine", "localhost", "--nodes", "1", "--lanes", "2"]
    assert main([*words, "-o", str(plan)]) == 0
    words = ["--net", "gpt:16:1:2", "--plan", str(plan), "--batch", "8", "--steps", "6"]
    words += ["-o", str(measured), "--log", str(log), "--figure", str(figure), "--evaluate", "3"]
    train(2, *words)
    found = timeline_file.read(measured)
    names = set(found.names)
    assert {"forward/embedding", "backward/head"} <= names
    assert {(s.rank, s.step) for s in found} == {(r, s) for r in range(2) for s in range(6)}
    for word in ("exchange", "apply"):
        assert any(name.endswith(word) for name in names), word
    assert "gpt:16:1:2, sync, 2 ranks" in figure.read_text()
    main(["simulate", str(plan), "-o", str(predicted)])
    assert main(["compare", str(predicted), str(measured)]) == 0


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> list[float]:
    """The losses of one rank without momentum."""
    path = tmp_path_factory.mktemp("plain") / "log.jsonl"
    train(1, *WORDS, *DENSE, "--optimizer", "sgd", "--log", str(path))
    return losses(path)


def daso_plan(folder: Path, *params: str) -> str:
    """A plan of DASO on two nodes of two ranks, for WORDS."""
    net, plan = folder / "net.json", folder / "plan.json"
    assert main(["profile", "words:8:300", "--batch", "6", "-o", str(net)]) == 0
    words = ["plan", str(net), "--machine", "localhost", "--nodes", "2", "--lanes", "2"]
    words += ["--strategy", "daso", "--lossless", "-o", str(plan)]
    for param in ("blocking=dense", "optimizer=sgd", "epochs=100000", "warmup=0", *params):
        words += ["--param", param]
    assert main(words) == 0
    return str(plan)


def test_daso_that_averages_after_every_batch_learns_what_sums_of_gradients_do(plain, tmp_path):
    """The mean of parameters that each node has moved by its mean gradient is one step of all."""
    plan = daso_plan(tmp_path, "gs=0", "wait=0", "batches=4", "cooldown=0")
    log = tmp_path / "log.jsonl"
    train(4, *WORDS, "--strategy", "daso", "--plan", plan, "--log", str(log))
    assert losses(log) == pytest.approx(plain, rel=1e-5)  # rounding, as above


def test_daso_learns_while_its_averages_are_under_way(plain, tmp_path):
    plan = daso_plan(tmp_path, "gs=4", "wait=2", "local_skip=4", "batches=12", "cooldown=0")
    log = tmp_path / "log.jsonl"
    words = (*WORDS, "--strategy", "daso", "--plan", plan, "--log", str(log))
    found = train(4, *words)
    assert train(4, *words)["parameters"] == found["parameters"]
    there = losses(log)
    assert there != plain
    assert there[0] == pytest.approx(plain[0], rel=1e-5)
    assert there[-1] == pytest.approx(plain[-1], rel=0.05)


def test_daso_says_what_it_cannot_do(tmp_path):
    plan = daso_plan(tmp_path, "gs=4", "batches=5", "cooldown=0")
    words = (*WORDS, "--strategy", "daso", "--plan", plan)
    assert "must be a multiple of 5" in started(4, *words).output


def test_a_plan_for_another_net_is_refused(tmp_path):
    net, plan = tmp_path / "net.json", tmp_path / "plan.json"
    main(["profile", "mlp:16:1", "--batch", "4", "-o", str(net)])
    words = ["plan", str(net), "--machine", "localhost", "--nodes", "1", "--lanes", "1"]
    main([*words, "-o", str(plan)])
    done = started(1, "--net", "mlp:8:1", "--plan", str(plan))
    assert done.status == 2
    assert "'hidden0.weight' has shape [64, 16] there, [64, 8] here" in done.output
    done = started(1, "--net", "mlp:16:2", "--plan", str(plan))
    assert "the plan is for net 'mlp:16:1', not for 'mlp:16:2': layers" in done.output


def test_a_file_that_is_no_log_is_not_replaced(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    done = started(2, "--net", "mlp:8:2", "--steps", "1", "--log", str(path))
    assert f"{path}: is no log, and --log would replace it" in done.output
    assert (done.status, path.read_text()) == (2, "mine")


def test_a_gradient_that_is_not_finite_ends_the_training_on_all_ranks():
    done = started(2, "--net", "mlp", *DENSE, "--optimizer", "sgd", "--rate", "1e30")
    assert done.status != 0
    assert "only finite numbers can be summed" in done.output
