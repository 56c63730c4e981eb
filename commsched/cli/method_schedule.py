"""Options of `plan` and `train` for changes of method during a training."""

import argparse
from typing import TYPE_CHECKING

from commsched.cli.options import ListOption, Option
from commsched.errors import CommschedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from commsched.plan.model import Plan


OPTIONS = (
    ListOption(
        "--first", "STEPS=METHOD", "use another method for all buckets in the first STEPS steps"
    ),
    ListOption("--later", "STEP=METHOD", "use another method for all buckets from this step on"),
    Option("--refresh", "N", "broadcast the parameters of rank 0 every N steps; 0: never", int, 0),
)


def check(args: argparse.Namespace, strategy: str) -> None:
    """Refuse options that a strategy cannot follow, before anything is planned."""
    from commsched.cli.choice import AUTO
    from commsched.program.registry import STRATEGIES

    if len(args.first) > 1:
        raise CommschedError(
            "--first is given once: after its steps the plan's own methods follow; for more changes"
            " give --later"
        )
    given = {"first": args.first, "later": args.later, "refresh": args.refresh}
    for option in (name for name, value in given.items() if value):
        if strategy == AUTO or not STRATEGIES[strategy].changes:
            raise CommschedError(f"--{option} is for strategy 'sync', got {strategy!r}")


def added(
    made: "Plan", args: argparse.Namespace, computed: "Mapping[int, str] | None" = None
) -> "Plan":
    """Return the plan with the method changes and broadcasts of the options, or computed ones."""
    from commsched.cli.options import pairs
    from commsched.planner.method_schedule import begun, scheduled

    def steps(given: list[str], option: str, form: str) -> "Mapping[int, str]":
        found = {}
        for step, method in pairs(given, option, form).items():
            if not (step.isascii() and step.isdecimal() and len(step) < 10):
                raise CommschedError(f"{option} {step}={method}: expected {form}, a whole number")
            found[int(step)] = method
        return found

    for number, method in steps(args.first, "--first", "STEPS=METHOD").items():
        made = begun(made, number, method)
    later = {**(computed or {}), **steps(args.later, "--later", "STEP=METHOD")}
    return scheduled(made, later, args.refresh)
