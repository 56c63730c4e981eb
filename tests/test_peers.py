"""What `bench torch` says of what contenders measured; the trainings themselves run nightly."""

import pytest

from commsched.errors import CommschedError
from commsched.lab.peers.main import (
    PeerCell,
    PeersRequest,
    again_after_crashes,
    as_good,
    check_settings,
)
from commsched.lab.peers.record import Learned, PeerTurns, Trained

STEPS = {
    "plan lossless": (0.9, 1.0, 1.1),
    "plan lossy": (0.4, 0.5, 0.6),
    "ddp 1 MB": (1.4, 1.5, 1.6),
    "ddp 25 MB": (1.1, 1.2, 9.0),
    "ddp fp16": (0.7, 0.7, 0.7),
    "ddp powersgd:1": (0.6, 0.65, 0.7),
}


JOB = PeerTurns(
    model="gpt",
    seed=0,
    steps=4,
    trained=tuple(Trained(name=name, seconds=each, loss=2.0) for name, each in STEPS.items()),
)


def learnt(seed: int, **losses: float) -> Learned:
    dense = dict.fromkeys(STEPS, 2.0 + 0.05 * seed)
    return Learned(model="gpt", seed=seed, steps=100, losses={**dense, **losses})


def test_the_best_peer_has_its_best_bucket_and_medians_over_turns() -> None:
    cell = PeerCell("gpt", "2x1gbit", (JOB, JOB), {})
    assert cell.best_peer(lossy=False) == "ddp 25 MB"
    assert cell.seconds("plan lossless") == pytest.approx(1.0)
    assert cell.seconds("ddp 25 MB") == pytest.approx(1.2)


@pytest.mark.parametrize(("loss", "good"), [(2.07, True), (2.08, False)])
def test_a_loss_is_as_good_as_dense_within_the_spread_of_its_seeds(loss: float, good: bool) -> None:
    # Dense losses are 2.00 and 2.05: a mean of 2.025 and a spread of 0.05.
    learned = tuple(learnt(seed, **{"plan fp16": loss}) for seed in range(2))
    assert as_good(learned, "plan fp16") is good


def test_lossy_peers_that_learn_worse_do_not_count() -> None:
    cell = PeerCell("gpt", "2x1gbit", (JOB,), {}, (learnt(0), learnt(1)))
    assert cell.best_peer(lossy=True) == "ddp powersgd:1"
    worse = {"ddp powersgd:1": 3.0}
    cell = cell._replace(learned=(learnt(0, **worse), learnt(1, **worse)))
    assert cell.best_peer(lossy=True) == "ddp fp16"
    worse["ddp fp16"] = 3.0
    cell = cell._replace(learned=(learnt(0, **worse), learnt(1, **worse)))
    assert cell.best_peer(lossy=True) == ""


@pytest.mark.parametrize(("crashes", "allowed"), [(0, 0), (2, 2), (2, 4), (1, 0), (3, 2)])
def test_a_job_that_crashes_runs_again_as_often_as_is_allowed(crashes: int, allowed: int) -> None:
    runs, said = list[int](), list[str]()

    def run() -> None:
        runs.append(len(runs))
        if len(runs) <= crashes:
            raise CommschedError("the job ended with status 11\nrank 0 was killed")

    if crashes > allowed:
        with pytest.raises(CommschedError, match="status 11"):
            again_after_crashes(run, allowed, said.append)
        assert len(runs) == allowed + 1
    else:
        again_after_crashes(run, allowed, said.append)
        assert len(runs) == crashes + 1
    assert len(said) == len(runs) - 1
    assert all(text.startswith("the job ended with status 11; once more") for text in said)


def test_a_folder_that_was_begun_with_other_settings_is_refused(tmp_path):
    check_settings(PeersRequest(folder=tmp_path / "cells"))
    check_settings(PeersRequest(folder=tmp_path / "cells", models=("mlp",)))
    with pytest.raises(CommschedError, match="give -o another folder"):
        check_settings(PeersRequest(folder=tmp_path / "cells", rounds=3))
