"""The example trains, and no rank count changes what it learns."""

import re
import sys

import pytest

from commsched.timeline import file as timeline_file
from tests.support import sampling
from tests.support.jobs import Ended, Job

LIMIT = 120  # s


def train(ranks: int, *arguments: str) -> Ended:
    with Job(ranks, [sys.executable, "examples/train_text.py", *arguments]) as job:
        return job.wait(LIMIT)


def losses(done: Ended) -> list[float]:
    assert done.status == 0, done.output
    printed = done.output
    return [float(loss) for loss in re.findall(r"^step +\d+  loss (\S+)$", printed, re.MULTILINE)]


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """One process on the whole batch: NumPy alone, but for an Exchanger of one rank."""
    return losses(train(1, "--steps", "20"))


def test_the_loss_falls(alone):
    assert len(alone) == 11
    assert alone[-1] < 0.95 * alone[0]


@pytest.mark.by_day(0)
@pytest.mark.parametrize("ranks", sampling.some([3, 2], 1))
def test_ranks_that_share_a_batch_learn_what_one_learns(ranks, alone, tmp_path):
    path = tmp_path / "measured.json"
    done = train(ranks, "--steps", "20", "--timeline", str(path))
    # The mean of the ranks' gradients is the gradient of all their samples; only float32 rounding,
    # 6e-8 each time, differs, and grows over 20 steps.
    assert losses(done) == pytest.approx(alone, rel=1e-4)
    assert f"all {ranks} ranks hold the same parameters" in done.output
    assert timeline_file.read(path).ranks == ranks


@pytest.mark.by_day(0)
def test_a_number_of_ranks_that_cannot_share_the_text_is_refused():
    done = train(5, "--steps", "1")
    assert done.status == 2
    assert "must divide 48, got 5" in done.output
