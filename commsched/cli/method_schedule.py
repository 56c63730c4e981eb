"""Options of `plan` and `train` for changes of method during a training."""

import argparse
from typing import TYPE_CHECKING

from commsched.cli.options import ListOption, Option
from commsched.errors import CommschedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commsched.plan.model import Plan


OPTIONS = (
    ListOption("--later", "STEP=METHOD", "use another method for all buckets from this step on"),
    Option("--refresh", "N", "broadcast the parameters of rank 0 every N steps; 0: never", int, 0),
)


def added(
    made: "Plan", args: argparse.Namespace, computed: "Mapping[int, str] | None" = None
) -> "Plan":
    """Return the plan with the method changes and broadcasts of the options, or computed ones."""
    from commsched.cli.arguments import pairs
    from commsched.planner.method_schedule import scheduled

    later = dict(computed or {})
    for step, method in pairs(args.later, "--later", "STEP=METHOD").items():
        if not (step.isascii() and step.isdecimal() and len(step) < 10):
            raise CommschedError(f"--later {step}={method}: expected STEP=METHOD, a whole number")
        later[int(step)] = method
    return scheduled(made, later, args.refresh)
