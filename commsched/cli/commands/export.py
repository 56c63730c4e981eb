"""`commsched export PLAN --to FORMAT`: a plan for other simulators, or as a table."""

import argparse
import json
from pathlib import Path

from commsched.cli.options import Flag, Option, command
from commsched.errors import CommschedError

EXAMPLE = """example:
  commsched export plan.json --to chakra -o traces
  commsched export plan.json --to goal --steps 3
  commsched export plan.json --to csv

Ranks compute and code for as long as in the prediction, and send the messages of the plan's
schedules; native is the algorithm that the machine's library takes. chakra: plan.RANK.et for
ASTRA-sim; goal: plan.goal for LogGOPSim (txt2bin -i plan.goal -o plan.bin); csv: a row per task.
The files hold no links: describe the network in the other simulator's own configuration.
"""
HELP = "write a plan's messages for other simulators (ASTRA-sim, LogGOPSim) or as a table"
OPTIONS = (
    Option("plan", None, "plan file", Path),
    Option("--to", "FORMAT", "chakra, goal or csv", required=True),
    Option("-o --output", "FOLDER", "folder of the files; default: that of the plan", Path),
    Option("--steps", "N", "number of steps", int, 1),
    Flag("--collectives", "chakra: an all-reduce is one node, whose messages the reader chooses"),
    Flag("--json", "print what was written as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def export(args: argparse.Namespace) -> None:
    """Write the files, and say what is in them."""
    from commsched import files
    from commsched.interchange.export import EXPORTS
    from commsched.interchange.tasks import TaskKind, tasks
    from commsched.program.read_plan import read_plan
    from commsched.progress import working
    from commsched.units import count, nbytes

    form = EXPORTS[args.to]
    form.check()
    if args.collectives and not form.collectives:
        raise CommschedError(f"--collectives is for chakra; {args.to} holds messages")
    if args.steps < 1:
        raise CommschedError(f"--steps must be at least 1, got {args.steps}")
    plan = read_plan(args.plan)
    folder = args.output or args.plan.parent
    files.make_folder(folder)
    with working("laying out messages"):
        made = tasks(plan, args.steps, args.collectives)
    with working("writing"):
        written = form.write(made, folder, files.stem(args.plan))
    sent = [t.nbytes for rank in made for t in rank if t.kind is TaskKind.SEND]
    found = {
        "files": [str(path) for path in written],
        "ranks": len(made),
        "steps": args.steps,
        "tasks": sum(map(len, made)),
        "messages": len(sent),
        "sent_bytes": sum(sent),
    }
    if args.json:
        print(json.dumps(found, indent=1))
        return
    tail = "" if len(written) == 1 else f" to {written[-1].name}"
    print(
        f"{count(len(made), 'rank')}, {count(args.steps, 'step')}, {found['tasks']:,} tasks,"
        f" {len(sent):,} messages of {nbytes(sum(sent))}"
    )
    print(f"written to {written[0]}{tail}")
