"""`commsched compare`: predicted against measured, and why they differ; or two predicted plans."""

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from commsched.cli.options import Flag, Option, command
from commsched.errors import CommschedError
from commsched.quantities import PERCENT

if TYPE_CHECKING:
    from commsched.timeline.model import Timeline

EXAMPLE = """\
example:
  commsched simulate plan.json -o predicted.json
  mpiexec -n 4 commsched run plan.json -o measured.json
  commsched compare predicted.json measured.json --fail-above 15%
  commsched compare plan-a.predicted.json plan-b.predicted.json

The first and the last step of each file do not count. A difference above zero means that the
prediction is too high. The files may be given in either order. Exits with status 1 if the
predicted iteration time is wrong by more than --fail-above. For two predicted timelines of
different plans, says which plan is faster if the prediction is certain enough.
"""


def count(text: str) -> int:
    """Read a whole number, at least 0."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 0, got {text!r}")
    return int(text)


HELP = "compare a predicted with a measured timeline"
OPTIONS = (
    Option("predicted", None, "timeline written by `commsched simulate`", Path),
    Option(
        "measured",
        None,
        "timeline of `commsched run`, trace of torch.profiler, or a second prediction",
        Path,
    ),
    Option("--fail-above", "SHARE", "largest error of the iteration time", PERCENT),
    Option("--limit", "N", "number of operations to print", count, 12),
    Flag("--json", "print the whole comparison as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def compare(args: argparse.Namespace) -> None:
    """Print the comparison; exit with 1 if the prediction's error exceeds --fail-above."""
    from commsched.interchange.kineto_timeline import read_pair
    from commsched.progress import working
    from commsched.timeline.compare import compare as compared
    from commsched.timeline.compare import swapped
    from commsched.timeline.report import comparison_data, comparison_table
    from commsched.timeline.spread import are_rivals

    with working("reading"):
        predicted, measured = read_pair(args.predicted, args.measured)
    if swapped(predicted, measured):
        told = f"{args.predicted} is measured and {args.measured} predicted: they are taken so"
        print(f"commsched: {told}", file=sys.stderr)
        predicted, measured = measured, predicted
    if are_rivals(predicted, measured):
        _rivals(args, predicted, measured)
        return
    found = compared(predicted, measured)
    text = comparison_table(found, args.limit)
    print(json.dumps(comparison_data(found), indent=1) if args.json else text)
    if args.fail_above is None:
        return
    error = found.iteration.error
    if error is None or abs(error) > args.fail_above:
        raise SystemExit(1)


def _rivals(args: argparse.Namespace, a: "Timeline", b: "Timeline") -> None:
    """Print which of two plans is faster."""
    from commsched.timeline.report import rivals_data, rivals_table
    from commsched.timeline.spread import rivals

    if args.fail_above is not None:
        raise CommschedError("--fail-above needs a measured timeline; both of these are predicted")
    found = rivals(a, b)
    print(json.dumps(rivals_data(found), indent=1) if args.json else rivals_table(found))
