"""Options of `plan` and `train` that say what changes over a training."""

import argparse
from typing import TYPE_CHECKING

from commsched.errors import CommschedError

if TYPE_CHECKING:
    from commsched.plan.model import Plan


def options(p: argparse.ArgumentParser) -> None:
    """Declare them."""
    p.add_argument(
        "--later",
        action="append",
        default=[],
        metavar="STEP=METHOD",
        help="from that step on all buckets go by another method, again for more steps",
    )
    p.add_argument(
        "--refresh",
        type=int,
        default=0,
        metavar="N",
        help="every N steps all ranks get the parameters of rank 0; default: 0, never",
    )


def added(made: "Plan", args: argparse.Namespace) -> "Plan":
    """The plan with what they say."""
    from commsched.cli.arguments import pairs
    from commsched.planner.method_schedule import scheduled

    later: dict[int, str] = {}
    for step, method in pairs(args.later, "--later").items():
        if not (step.isascii() and step.isdecimal() and len(step) < 10):
            raise CommschedError(f"--later {step}={method}: expected STEP=METHOD, a whole number")
        later[int(step)] = method
    return scheduled(made, later, args.refresh)
