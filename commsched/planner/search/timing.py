"""The iteration of a plan by the simulator."""

import numpy as np

from commsched.plan.model import Plan
from commsched.simulate.engine import STEPS, simulate
from commsched.simulate.exchange_costs import Known
from commsched.simulate.result import Prediction


def iteration(plan: Plan, known: Known | None = None) -> float:
    """Seconds of the simulated iteration, as `simulate` reports it.

    `known` keeps exchanges that plans on one machine share.
    Without jitter and stalls all steps but the first are alike.
    """
    return float(np.median(predicted(plan, known).iterations[1:]))


def predicted(plan: Plan, known: Known | None = None) -> Prediction:
    """Simulate the steps of which an iteration is the median, and the one that ends the last."""
    steps = 2 if plan.machine.even else STEPS
    return simulate(plan, steps=steps + 1, known=known)
