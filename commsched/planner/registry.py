"""All planners by name, and the frames by which strategies use them."""

from collections.abc import Callable

from commsched.plan.model import Plan
from commsched.planner.request import Request
from commsched.registry import Registry

Planner = Callable[[Request], Plan]
PLANNERS: Registry[Planner] = Registry(
    "planner", "commsched.planner.baselines", "commsched.planner.planners"
)
# A frame makes the plan of a strategy; it asks the planner for the parts that a planner decides.
FRAMES: Registry[Callable[[Request, Planner], Plan]] = Registry("frame", "commsched.planner.frames")
# An outline makes a strategy's plan without launches; it chooses the degrees left open.
OUTLINES: Registry[Callable[[Request], Plan]] = Registry("outline", "commsched.planner.frames")
DEFAULT = "best"
