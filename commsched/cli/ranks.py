"""The start of a command that all ranks of a job run together."""

import argparse
from collections.abc import Collection

TIMEOUT = 60.0  # s, of a command without --timeout
# Not compared as words: functions, the typed line, and files, whose contents are compared.
APART = ("run", "whole_parser", "line", "plan", "script")


def begin(args: argparse.Namespace, own: Collection[str] = ()) -> None:
    """Load MPI before NumPy, and refuse ranks that were started with different options.

    own: options whose value may differ between ranks.
    """
    from commsched.run.job.meeting import meet

    given = vars(args)
    shared = {k: str(v) for k, v in given.items() if k not in (*APART, *own)}
    options = {f"--{k.replace('_', '-')}": v for k, v in shared.items()}
    meet(args.run.__name__, options, given.get("timeout", TIMEOUT))
