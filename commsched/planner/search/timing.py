"""The iteration of a plan by the simulator."""

import numpy as np

from commsched.plan.model import Plan
from commsched.simulate.engine import Known, simulate


def iteration(plan: Plan, known: Known | None = None) -> float:
    """Seconds of the simulated iteration, the longest over the ranks.

    `known` keeps exchanges that plans on one machine share.
    Without jitter all steps but the first are alike; with jitter it is the median of eight.
    """
    steps = 3 if plan.machine.jitter == 0.0 else 10
    starts = simulate(plan, steps=steps, known=known).starts
    return float(np.median(np.diff(starts[1:], axis=0).max(axis=1)))
