"""PyTorch's CNN under `attach` learns what our own net learns by the same plan: equal bytes."""

import importlib.util

import pytest

from commsched.lab.convergence import trainings as bench
from commsched.lab.convergence.tables import TABLES
from commsched.lab.convergence.trainings import ConvergenceRequest

if importlib.util.find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

CASES = ("dense", "fft:0.15", "topk:0.03125", "topk:0.03125:forget", "daso")


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The first training of each case, by our own net and by PyTorch's."""
    found = []
    for table in ("cnn", "torch"):
        wanted = ConvergenceRequest(table=table, names=CASES, folds=1, seeds=1)
        made = bench.train(wanted, tmp_path_factory.mktemp(table), print)
        found.append({case.name: case.trained.trials[0] for case in made.cases})
    return found


@pytest.mark.parametrize("name", CASES)
def test_pytorch_learns_the_same_with_the_same_bytes(name, learned):
    ours, theirs = (found[name] for found in learned)
    assert theirs.sent_bytes == pytest.approx(ours.sent_bytes, rel=1e-9)
    assert len(ours.held_out) == len(theirs.held_out) == TABLES["cnn"].periods
    first = [trial.held_out[0].loss for trial in (ours, theirs)]
    assert first[0] == pytest.approx(first[1], rel=1e-3)  # later, rounding grows
    assert theirs.end.accuracy == pytest.approx(ours.end.accuracy, abs=0.02)
