"""The start of a command that all ranks of a job run together."""

import argparse

TIMEOUT = 60.0  # s, of a command without --timeout
# functions, words, files whose contents are compared, and what each rank may have of its own
APART = ("run", "whole_parser", "line", "plan", "script", "device")


def begin(args: argparse.Namespace) -> None:
    """Load MPI before NumPy, and refuse ranks that were started with different options."""
    from commsched.run.job.meeting import meet

    given = vars(args)
    options = {f"--{k.replace('_', '-')}": str(v) for k, v in given.items() if k not in APART}
    meet(args.run.__name__, options, given.get("timeout", TIMEOUT))
