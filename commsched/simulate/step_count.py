"""The default number of steps of a prediction."""

from commsched.plan.model import Plan

STEPS = 10  # at least, before the one that ends the last


def cycle_of(plan: Plan) -> int:
    """Count the steps after which a plan's launches repeat."""
    return max((launch.every for launch in plan.launches), default=1)


def usual_steps(plan: Plan) -> int:
    """Count the steps of a prediction: the first, and two cycles of launches, or more."""
    return max(STEPS, 1 + 2 * cycle_of(plan))
