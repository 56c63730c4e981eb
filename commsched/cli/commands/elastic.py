"""`commsched elastic`: run a training script on some ranks, restarted when one of them is lost."""

import argparse
from pathlib import Path

from commsched.cli import elastic as job
from commsched.cli.options import Option, command
from commsched.errors import CommschedError

EXAMPLE = """example:
  commsched elastic -n 4 --checkpoint kept -- python examples/torch_elastic.py plan.json
"""
HELP = "run a training script that goes on from its checkpoint when a rank is lost"
OPTIONS = (
    Option("-n --ranks", "P", "number of ranks", int, required=True),
    Option("--checkpoint", "DIR", "folder of the script's checkpoints", Path, required=True),
    *job.OPTIONS,
    Option("words", "-- COMMAND", "command of a rank", nargs=argparse.REMAINDER),
)


@command(HELP, OPTIONS, EXAMPLE, ranks=True)
def elastic(args: argparse.Namespace) -> int:
    """Run the script, and return its status."""
    words = args.words[1:] if args.words[:1] == ["--"] else args.words
    if not words:
        raise CommschedError("elastic: nothing to run; give the command of a rank after --")
    if job.supervised("elastic"):
        raise CommschedError("elastic: a supervisor has started this process already")
    return job.run(args.ranks, args.checkpoint, words, args)
