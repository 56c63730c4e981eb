"""`mpiexec -n P commsched run`: execute a plan on real ranks."""

import argparse
import json
from pathlib import Path

EXAMPLE = """example:
  mpiexec -n 4 commsched run plan.json -o measured.json --steps 20
  mpiexec -n 4 commsched run plan.json -o measured.json --verify
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "run",
        help="execute a plan on real ranks, under mpiexec",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("plan", type=Path, help="plan file")
    p.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="timeline")
    p.add_argument("--steps", type=int, default=10, metavar="N", help="default: 10")
    p.add_argument("--verify", action="store_true", help="check every result against a dense sum")
    p.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds that an operation may wait before the job is ended; default: 60",
    )
    p.add_argument("--json", action="store_true", help="print the summary as JSON")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run, and print the summary on rank 0."""
    from commsched.run import launcher

    launcher.load()
    from commsched.run.session import Options, run_file

    options = Options(steps=args.steps, timeout=args.timeout, verify=args.verify)
    timeline = run_file(args.plan, args.output, options, progress=not args.json)
    if timeline is None:
        return
    from commsched.run.summary import lines, summary

    found = summary(timeline)
    print(
        json.dumps(found, indent=1)
        if args.json
        else "\n".join([*lines(found), f"written to {args.output}"])
    )
