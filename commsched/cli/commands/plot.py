"""`commsched plot`: draw a timeline, or a predicted over a measured one."""

import argparse
from pathlib import Path

from commsched.errors import CommschedError

EXAMPLE = """\
example:
  commsched plot predicted.json measured.json -o timeline.png
  commsched plot measured.json -o timeline.svg --step 3 --ranks 0,7
  commsched plot predicted.json measured.json -o timeline.html

Without --step, the measured step of median iteration time is drawn. Of more than 8 ranks the
first, the slowest and some median ones are drawn, unless --ranks says which. An .html page has all
steps and ranks, to zoom, pan and search, in one file that needs no network; it opens at that step
with those ranks unfolded.
"""


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    p = commands.add_parser(
        "plot",
        help="draw a timeline as PNG, SVG or a page to zoom",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("predicted", type=Path, help="timeline: predicted, or the only one")
    p.add_argument("measured", type=Path, nargs="?", help="timeline to draw below it")
    kinds = ".png, .svg or .html"
    p.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=kinds)
    p.add_argument("--step", type=int, metavar="N", help="which step to draw")
    p.add_argument("--ranks", metavar="RANK,...", help="which ranks to draw")
    p.set_defaults(run=plot)


def plot(args: argparse.Namespace) -> None:
    """Draw the picture."""
    ranks = None if args.ranks is None else _ranks(args.ranks)
    from commsched.plot.draw import draw
    from commsched.timeline import file as timeline_file

    predicted = timeline_file.read(args.predicted)
    measured = None if args.measured is None else timeline_file.read(args.measured)
    draw(predicted, measured, args.output, args.step, ranks)


def _ranks(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise CommschedError(f"--ranks must be whole numbers such as 0,3, got {text!r}")
    return [int(part) for part in parts]
