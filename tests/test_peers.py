"""What `bench torch` says of what contenders measured; the trainings themselves run nightly."""

import pytest

from commsched.lab.peers.main import Cell
from commsched.lab.peers.record import Trained, Turns

STEPS = {
    "plan lossless": (0.9, 1.0, 1.1),
    "plan lossy": (0.4, 0.5, 0.6),
    "ddp 1 MB": (1.4, 1.5, 1.6),
    "ddp 25 MB": (1.1, 1.2, 9.0),
    "ddp fp16": (0.7, 0.7, 0.7),
    "ddp powersgd:1": (0.6, 0.65, 0.7),
}


def job(seed: int, losses: dict[str, float]) -> Turns:
    trained = tuple(
        Trained(name=name, seconds=seconds, loss=losses.get(name, 2.0 + 0.05 * seed))
        for name, seconds in STEPS.items()
    )
    return Turns(model="gpt", seed=seed, steps=4, trained=trained)


def test_the_best_peer_has_its_best_bucket_and_medians_over_turns() -> None:
    cell = Cell("gpt", "2x1gbit", (job(0, {}), job(1, {})), {})
    assert cell.best_peer(lossy=False) == "ddp 25 MB"
    assert cell.best_peer(lossy=True) == "ddp powersgd:1"
    assert cell.seconds("plan lossless") == pytest.approx(1.0)
    assert cell.seconds("ddp 25 MB") == pytest.approx(1.2)


@pytest.mark.parametrize(("loss", "said"), [(2.07, "as good"), (2.08, "worse")])
def test_a_loss_is_as_good_as_dense_within_the_spread_of_its_seeds(loss: float, said: str) -> None:
    # Dense losses are 2.00 and 2.05: a mean of 2.025 and a spread of 0.05.
    jobs = tuple(job(seed, {"plan lossy": loss}) for seed in range(2))
    assert said in Cell("gpt", "2x1gbit", jobs, {}).learning("plan lossy")
    assert "of one seed" in Cell("gpt", "2x1gbit", jobs[:1], {}).learning("plan lossy")
