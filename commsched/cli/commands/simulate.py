"""`commsched simulate`: predict the timeline of a plan."""

import argparse
import json
from pathlib import Path

from commsched.cli import size
from commsched.cli.options import Flag, Option, command, json_file
from commsched.errors import CommschedError
from commsched.net.compute import compute_data, origin
from commsched.program.read_plan import read_plan
from commsched.progress import progress
from commsched.simulate.engine import simulate as predict
from commsched.simulate.replay import Replay, replay
from commsched.simulate.report import lines, report
from commsched.simulate.step_count import STEPS, usual_steps
from commsched.timeline import file as timeline_file

EXAMPLE = """example:
  commsched simulate plan.json -o predicted.json
  commsched simulate plan.json -o predicted.json --steps 10 --replay measured.json
"""
DRAWN = 64  # ranks whose spans are written by default: enough to look at, small enough to open
HELP = "predict the timeline of a plan"
OPTIONS = (
    Option("plan", None, "plan file", Path),
    Option("-o --output", "FILE", "timeline to write", json_file),
    Option("--steps", "N", f"number of steps; default: {STEPS}, or two cycles of launches", int),
    Option("--replay", "FILE", "repeat a measured run's decisions and changes to dense sums", Path),
    Option("--ranks", "N", "write the spans of the first N ranks only", int, DRAWN),
    size.FORCE_SIZE,
    Flag("--json", "print the report as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def simulate(args: argparse.Namespace) -> None:
    """Predict, write, report."""
    if args.ranks < 1:
        raise CommschedError(f"--ranks must be at least 1, got {args.ranks}")
    if args.steps is not None and args.steps < 2:
        raise CommschedError(
            f"--steps must be at least 2, since the first step is not counted; got {args.steps}"
        )
    plan = read_plan(args.plan)
    wanted = usual_steps(plan) if args.steps is None else args.steps
    taken = Replay({}, {})
    if args.replay is not None:
        measured = timeline_file.read(args.replay, decided=wanted)
        taken = replay(plan, measured, wanted, str(args.replay))
    # One more step shows when the last one ends; a replay has exactly the measured steps.
    steps = wanted + (args.replay is None)
    written = args.ranks if args.output is not None else 0
    size.check(args, f"--steps {wanted}", size.simulation(plan, steps, written))
    with progress(steps, "step") as bar:
        prediction = predict(
            plan, steps, taken.decisions, lambda _: bar.update(), changes=taken.changes
        )
    if args.output is not None:
        timeline_file.write(args.output, prediction.timeline(args.ranks))
    found = {**report(prediction), "compute": compute_data(plan.net)}
    print(
        json.dumps(found, indent=1) if args.json else "\n".join([*origin(plan.net), *lines(found)])
    )
    if args.output is not None and not args.json:
        ranks = plan.machine.size
        some = f", the spans of {args.ranks:,} of {ranks:,} ranks" if args.ranks < ranks else ""
        print(f"written to {args.output}{some}")
