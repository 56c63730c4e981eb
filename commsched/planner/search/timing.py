"""The iteration of a plan by the simulator."""

import numpy as np

from commsched.plan.model import Plan
from commsched.simulate.engine import simulate
from commsched.simulate.exchange_costs import Known
from commsched.simulate.result import Prediction
from commsched.simulate.step_count import STEPS


def iteration(plan: Plan, known: Known | None = None, few: bool = False) -> float:
    """Return the s of the simulated iteration, as `simulate` reports it; with `few`, of one step.

    `known` keeps exchanges that plans on one machine share.
    """
    return float(np.median(predicted(plan, known, few).iterations[1:]))


def predicted(plan: Plan, known: Known | None = None, few: bool = False) -> Prediction:
    """Simulate the steps whose median is the iteration, and one more, which ends the last of them.

    Without jitter or stalls, all steps but the first are equal.
    """
    steps = 2 if few or plan.machine.alike else STEPS
    return simulate(plan, steps=steps + 1, known=known)
