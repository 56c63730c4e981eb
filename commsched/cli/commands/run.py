"""`mpiexec -n P commsched run`: execute a plan on real ranks."""

import argparse
import json
from pathlib import Path

from commsched.cli import size
from commsched.cli.options import DEVICE, Flag, Option, command, json_path
from commsched.cli.ranks import begin
from commsched.quantities import SECONDS

EXAMPLE = """example:
  mpiexec -n 4 commsched run plan.json -o measured.json --steps 20
  mpiexec -n 4 commsched run plan.json -o measured.json --verify

Emulated compute sleeps, or keeps a core busy, for the net's seconds. Gradients are drawn once, and
every step exchanges them. Methods that follow how gradients change, such as mask and ok-topk,
therefore send other bytes than in a training; `commsched simulate` predicts the training.
"""
HELP = "execute a plan on real ranks, under mpiexec"
OPTIONS = (
    Option("plan", None, "plan file", Path),
    Option("-o --output", "FILE", "timeline to write", json_path, required=True),
    Option("--steps", "N", "number of steps", int, 10),
    Flag("--verify", "check every result against a dense sum"),
    Flag("--replan", "plan again between two steps if exchange times or densities differ"),
    DEVICE,
    size.FORCE_SIZE,
    Option(
        "--timeout", "TIME", "end the job if an operation waits longer than this", SECONDS, 60.0
    ),
    Flag("--json", "print the summary as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def run(args: argparse.Namespace) -> None:
    """Run, and print the summary on rank 0."""
    begin(args, own=("device",))
    from commsched.planner.replan import replanned
    from commsched.run.session import RunOptions, run_file

    options = RunOptions(
        steps=args.steps,
        timeout=args.timeout,
        verify=args.verify,
        device=args.device,
        replan=replanned if args.replan else None,
        check=lambda plan: size.check(args, f"--steps {args.steps}", size.run(plan, args.steps)),
    )
    timeline = run_file(args.plan, args.output, options, progress=not args.json)
    if timeline is None:
        return
    from commsched.net.compute import compute_data, origin
    from commsched.program.read_plan import read_plan
    from commsched.timeline.summary import lines, summary

    net = read_plan(args.plan).net
    found = {**summary(timeline), "compute": compute_data(net)}
    print(
        json.dumps(found, indent=1)
        if args.json
        else "\n".join([*origin(net), *lines(found), f"written to {args.output}"])
    )
