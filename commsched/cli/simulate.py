"""`commsched simulate`: predict the timeline of a plan."""

import argparse
import json
from pathlib import Path

from commsched import files
from commsched.errors import CommschedError
from commsched.plan import Plan
from commsched.plan import file as plan_file
from commsched.simulate import simulate as predict
from commsched.simulate.report import lines, report
from commsched.timeline import file as timeline_file

EXAMPLE = """example:
  commsched simulate plan.json -o predicted.json
  commsched simulate plan.json -o predicted.json --steps 10 --replay measured.json
"""
DRAWN = 64  # ranks whose spans are written by default: enough to look at, small enough to open


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "simulate",
        help="predict the timeline of a plan",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("plan", type=Path, help="plan file")
    p.add_argument("-o", "--output", type=Path, metavar="FILE", help="timeline")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="default: 10")
    p.add_argument("--replay", type=Path, metavar="FILE", help="take a measured run's decisions")
    p.add_argument(
        "--ranks",
        type=int,
        default=DRAWN,
        metavar="N",
        help=f"write the spans of the first N ranks only; default: {DRAWN}",
    )
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.set_defaults(run=simulate)


def simulate(args: argparse.Namespace) -> None:
    """Predict, write, report."""
    if args.ranks < 1:
        raise CommschedError(f"--ranks must be at least 1, got {args.ranks}")
    plan = plan_file.read(args.plan)
    decisions = {} if args.replay is None else recorded(plan, args.replay)
    prediction = predict(plan, args.steps, decisions)
    if args.output is not None:
        timeline_file.write(args.output, prediction.timeline(args.ranks))
    found = report(prediction)
    print(json.dumps(found, indent=1) if args.json else "\n".join(lines(found)))
    if args.output is not None and not args.json:
        print(f"written to {args.output}")


def recorded(plan: Plan, path: Path) -> dict[str, float]:
    """The decisions of a measured run of this very plan."""
    measured = timeline_file.read(path)
    if measured.plan_hash != plan.hash:
        raise CommschedError(
            f"{path}: a run of plan {measured.plan_hash[:12]}, not of {plan.hash[:12]}; replay a"
            " run of the plan that is simulated"
        )
    decisions = measured.meta.get("decisions", {})
    return files.convert(decisions, dict[str, float], f"{path}: decisions")
