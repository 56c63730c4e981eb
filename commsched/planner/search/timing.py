"""The iteration of a plan by the simulator."""

import numpy as np

from commsched.plan.model import Plan
from commsched.simulate.engine import STEPS, Known, simulate


def iteration(plan: Plan, known: Known | None = None) -> float:
    """Seconds of the simulated iteration, as `simulate` reports it.

    `known` keeps exchanges that plans on one machine share.
    Without jitter all steps but the first are alike.
    """
    steps = 2 if plan.machine.jitter == 0.0 else STEPS
    return float(np.median(simulate(plan, steps=steps + 1, known=known).iterations[1:]))
