"""The rule by which DataParallel keeps a plan, on recorded step times of a real training."""

import json

import numpy as np

from commsched.run.adapt.plan_choice import Steps, keeps, steps_of
from tests.support.jobs import ROOT

RECORDED = np.array(json.loads((ROOT / "traces" / "torch-steps.json").read_text())["seconds"])
TURNS = np.array([k % 4 in (1, 2) for k in range(8) for _ in range(5)])  # A B B A A B B A


def share(seconds, factor):
    """How often a plan stays whose steps take `factor` as long, over windows of the recording."""
    kept = []
    for start in range(0, len(seconds) - len(TURNS), 3):
        window = seconds[start : start + len(TURNS)]
        kept.append(keeps(steps_of(window[TURNS] * factor), steps_of(window[~TURNS])))
    return np.mean(kept)


def test_a_plan_that_is_slower_by_more_than_2_percent_never_stays():
    spread = np.median(np.abs(RECORDED / np.median(RECORDED) - 1))
    assert 0.1 < spread < 0.3  # of a machine that others used, too
    quieter = np.median(RECORDED) * (RECORDED / np.median(RECORDED)) ** 0.1
    for seconds in (RECORDED, quieter):
        for factor in (1.021, 1.05, 1.3):
            assert share(seconds, factor) < 0.02, factor
        assert share(seconds, 1.0) < 0.05
    assert share(RECORDED, 0.7) > 0.9
    assert share(quieter, 0.95) > 0.9


def test_an_outlier_moves_neither_the_median_nor_its_error():
    calm = steps_of([1.0, 1.1, 0.9, 1.05, 0.95])
    wild = steps_of([1.0, 90.0, 0.9, 1.05, 0.95])
    assert calm.median == wild.median == 1.0
    assert wild.error <= 2 * calm.error
    assert abs(calm.error - 1.2533 * 1.4826 * 0.05 / 5**0.5) < 1e-9
    assert not keeps(Steps(1.0, 0.0), Steps(1.0, 0.0))
