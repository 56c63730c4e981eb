"""`commsched plot`: draw a timeline, or a predicted over a measured one."""

import argparse
from pathlib import Path

from commsched.cli import study_picture
from commsched.cli.options import Commands, Option, add_command, output_file
from commsched.errors import CommschedError
from commsched.progress import working

EXAMPLE = """\
example:
  commsched plot predicted.json measured.json -o timeline.png
  commsched plot measured.json -o timeline.svg --step 3 --ranks 0,7
  commsched plot predicted.json measured.json -o timeline.html
  commsched plot sweep.csv --x bandwidth --y step --lines planner -o sweep.pdf

Without --step, the measured step of median iteration time is drawn. Of ranks that do the same at
the same times one is drawn. Of more than 8 others the first, the slowest (if all compute equally
long, the latest) and some median ones are drawn, unless --ranks says which. An .html page has all
steps and ranks of the file, to zoom, pan and search, in one file that needs no network; it opens
at that step with those ranks unfolded.
"""


OPTIONS = (
    Option("predicted", None, "timeline: predicted, or the only one; or a table of sweep", Path),
    Option("measured", None, "timeline to draw below it", Path, nargs="?"),
    Option("-o --output", "FILE", ".png, .svg or .html", output_file, required=True),
    Option("--step", "N", "step to draw; default: the median one", int),
    Option("--ranks", "RANK,...", "ranks to draw, such as 0,7"),
    *study_picture.OPTIONS,
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "draw a timeline as PNG, SVG or interactive page"
    add_command(commands, "plot", plot, text, OPTIONS, EXAMPLE)


def plot(args: argparse.Namespace) -> None:
    """Draw the picture."""
    if study_picture.is_table(args.predicted):
        study_picture.draw(args.predicted, args.output, args)
        return
    ranks = None if args.ranks is None else _ranks(args.ranks)
    from commsched.plot.draw import draw
    from commsched.timeline import file as timeline_file
    from commsched.timeline.compare import swapped

    if args.output.suffix.lower() != ".html":
        from commsched.plot.picture import check_suffix  # loads matplotlib

        check_suffix(args.output, ".png, .svg or .html")  # before the work begins
    with working("reading"):
        predicted = timeline_file.read(args.predicted)
        measured = None if args.measured is None else timeline_file.read(args.measured)
    if measured is not None and swapped(predicted, measured):
        predicted, measured = measured, predicted
    with working("drawing"):
        draw(predicted, measured, args.output, args.step, ranks)


def _ranks(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdecimal() and len(part) < 10 for part in parts):
        raise CommschedError(f"--ranks must be whole numbers such as 0,3, got {text!r}")
    return [int(part) for part in parts]
