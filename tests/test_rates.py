"""Learning rates that change over a training, and the codec whose theta follows them."""

from dataclasses import replace
from math import cos, inf, pi

import numpy as np
import pytest

from commsched.cli.main import main
from commsched.errors import CommschedError
from commsched.exchange.registry import find_method
from commsched.planner.make_plan import make_plan
from commsched.planner.request import Request
from commsched.train.assignment import Settings
from commsched.train.in_process import InProcessTraining
from commsched.train.job import TRAINED
from commsched.train.neighbours import InProcessNeighbours
from commsched.train.profile import profile_net
from commsched.train.registry import DATA, NETS
from commsched.train.schedules import Rates, RateSchedule, read, tied
from tests.support.small_plans import machine
from tests.test_train import train

NET, BATCH = "mlp:8:3", 24


def shares(text: str, steps: int = 8) -> list[float]:
    return [read(text).share(step, steps) for step in range(steps)]


def test_the_share_of_a_step_is_the_formula_of_its_schedule():
    assert shares("constant") == [1] * 8
    assert shares("steps:0.5:2:5") == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    half = [(1 + cos(pi * t / 8)) / 2 for t in range(8)]
    assert shares("cosine") == pytest.approx(half)
    assert shares("cosine:0.2") == pytest.approx([0.2 + 0.8 * share for share in half])
    assert shares("warm-up:4,constant") == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    late = [(1 + cos(pi * t / 4)) / 2 for t in range(4)]
    assert shares("warm-up:4,cosine") == pytest.approx([0.25, 0.5, 0.75, 1, *late])


def test_a_plateau_is_more_evaluations_than_its_patience_without_a_better_loss():
    rates, seen = Rates(1.0, read("plateau:0.5:1"), 0), []
    for loss in (3.0, 2.0, 2.0, 2.5, 1.0, 1.5, inf, 1.0, 0.9):
        rates.observe(loss)
        seen.append(rates.at(0))
        again = Rates(1.0, read("plateau:0.5:1"), 0)
        again.restore(rates.numbers())
        rates = again  # what a checkpoint holds is all
    assert seen == [1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "linear",
        "steps:2:5",
        "steps:0.5",
        "cosine:1:2",
        "plateau:0.5",
        "warm-up:3",
        "x:1,cosine",
    ],
)
def test_a_schedule_that_is_none_is_refused(text):
    with pytest.raises(CommschedError, match="--schedule must be one of"):
        read(text)


def trained(strategy: str, rate: float, schedule: RateSchedule) -> dict[str, np.ndarray]:
    staged = strategy in ("1f1b", "samo")
    params = {"stages": 2, "microbatches": 2} if staged else {}
    graph = profile_net(NETS[NET], BATCH // 2, half=strategy == "samo")
    on = machine(1, 2)
    plan = make_plan(Request(net=graph, machine=on, strategy=strategy, params=params), "ddp-25mb")
    settings = Settings(
        optimizer="adam", rate=rate, batch=BATCH, schedule=schedule, half=strategy == "samo"
    )
    rings = (
        replace(x, method="ring+dense") if x.method == "native+dense" else x for x in plan.launches
    )
    plan = replace(plan, launches=tuple(rings))
    ranks = InProcessTraining(NETS[NET], DATA["digits"](0), plan, settings, TRAINED[strategy])
    for step in range(4):
        ranks.step(step)
    ranks.evaluate()
    ends = InProcessNeighbours.all(2)
    found: dict[str, np.ndarray] = {}
    for learner, end in zip(ranks.learners, ends, strict=True):
        found |= {name: values.copy() for name, values in learner.whole(end).items()}
    return found


@pytest.mark.parametrize("strategy", ["sync", "shadow", "1f1b", "samo"])
def test_every_worker_learns_with_the_rate_of_its_step(strategy):
    """Half of twice the rate is the rate, to the bit."""
    wanted = trained(strategy, 0.01, RateSchedule())
    found = trained(strategy, 0.02, read("steps:0.5:0"))
    changed = trained(strategy, 0.01, read("steps:0.5:2"))
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    assert any(not np.array_equal(changed[name], wanted[name]) for name in wanted)


def test_a_resumed_training_goes_on_with_its_plateaus(tmp_path):
    words = ("--net", NET, "--batch", "24", "--rate", "0.5", "--evaluate", "2", "--method")
    words = (*words, "ring+dense", "--schedule", "plateau:0.5:0")
    plain = train(1, *words, "--steps", "12")
    assert plain["parameters"] != train(1, *words[:-2], "--steps", "12")["parameters"]
    kept = ("--checkpoint", str(tmp_path))
    train(1, *words, "--steps", "7", *kept)  # whose end is no evaluation of a longer training
    assert train(1, *words, "--steps", "12", *kept, "--resume")["parameters"] == plain["parameters"]


def test_theta_follows_the_rate():
    found = tied("all-gather+fft:0.15:forget", 0.7225 / 0.1, 0.1, read("steps:0.25:100"), 200)
    assert found == {0: "all-gather+fft:0.15:forget", 100: "all-gather+fft:0.6:forget"}
    many = tied("all-gather+fft:0.15", 7.2, 0.1, read("cosine"), 1000)
    kept = [float(name.split(":")[1]) for name in many.values()]
    assert kept == sorted(kept)
    assert kept[-1] == 1.0  # theta -> 0: nothing is dropped
    assert all(find_method(name) for name in many.values())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--theta", "7", "--method", "all-gather+topk:0.1"], "--theta is for --method"),
        (["--theta", "7"], "--theta needs --method"),
        (["--schedule", "linear"], "--schedule must be one of"),
    ],
)
def test_wrong_options_are_one_sentence(words, said, capsys):
    assert main(["train", "--net", "mlp", *words]) == 2
    assert said in capsys.readouterr().err
