"""`commsched simulate`: predict the timeline of a plan."""

import argparse
import json
from pathlib import Path

from commsched.errors import CommschedError
from commsched.plan import file as plan_file
from commsched.simulate.engine import simulate as predict
from commsched.simulate.replay import Replay, replay
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
    p.add_argument(
        "--replay",
        type=Path,
        metavar="FILE",
        help="take a measured run's decisions and changes of plan",
    )
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
    taken = Replay({}, {})
    if args.replay is not None:
        taken = replay(plan, timeline_file.read(args.replay), args.steps, str(args.replay))
    prediction = predict(plan, args.steps, taken.decisions, changes=taken.changes)
    if args.output is not None:
        timeline_file.write(args.output, prediction.timeline(args.ranks))
    found = report(prediction)
    print(json.dumps(found, indent=1) if args.json else "\n".join(lines(found)))
    if args.output is not None and not args.json:
        print(f"written to {args.output}")
