"""`commsched plot`: draw one or two timelines, a table of `sweep`, or logs of trainings."""

import argparse
import json
from pathlib import Path
from typing import Any

from commsched import files
from commsched.cli.options import Flag, ListOption, Option, command, output_file, pairs
from commsched.errors import CommschedError
from commsched.progress import working
from commsched.quantities import INCHES, POINTS
from commsched.training_log import is_log

EXAMPLE = """\
example:
  commsched plot predicted.json measured.json -o timeline.png
  commsched plot measured.json -o timeline.svg --step 3 --ranks 0,7
  commsched plot dense.json fp16.json -o both.pdf --width 3.3in --lanes compute,between --title ""
  commsched plot predicted.json measured.json -o timeline.html
  commsched plot sweep.csv --x bandwidth --y step --lines planner -o sweep.pdf
  commsched plot dense.jsonl fp16.jsonl --x seconds -o losses.png

Two timelines of one plan alternate rank by rank; two plans of one net follow each other.

Without --step, the picture shows the step of median iteration time, of the measured or the second
timeline. If several ranks do the same at the same times, one of them is drawn. If more than 8 ranks
remain, --ranks chooses; by default the first, the slowest (if all compute equally long, the latest)
and some median ones are drawn.

An .html page has all steps and ranks of the file, to zoom, pan and search, in one file that needs
no network. The page opens at the step and the ranks that a picture would show.
https://ui.perfetto.dev opens the timeline files, too.
"""

OF_TABLES = (
    Option(
        "--x",
        "COLUMN",
        "of a table: bandwidth, ranks, nodes, net, machine, ...; of logs: step or seconds",
        str,
        "",
    ),
    Option(
        "--y",
        "COLUMN",
        "of a table: step, batch, exposed, bytes, memory, bound, or a list",
        str,
        "",
    ),
    Option("--lines", "COLUMN,...", "of a table: a line for each; default: what differs", str, ""),
    Option("--value", "COLUMN", "of a table: a heat map of it over --x and --y", str, ""),
    Option("--pareto", "COLUMN", "of a table: time against memory, bytes or money", str, ""),
    Flag(
        "--break-even",
        "of a table: mark where --allow stops saving 1%% of a step",
    ),
    ListOption("--where", "COLUMN=VALUE", "of a table: only these rows"),
    ListOption("--price-per-hour", "MACHINE=MONEY", "of a table: what a node costs"),
)

TABLE_NAMES = ("x", "y", "lines", "value", "pareto", "break_even", "where", "price_per_hour")
WITHOUT = {"value": ("lines", "pareto", "break_even"), "pareto": ("x", "y", "break_even")}

TABLE, LOGS = "a picture of a table", "a picture of trainings"
TIMELINES, PAGE = "a picture of timelines", "a page of timelines"
LOOKS = ("width", "height", "font_size", "title")
TAKEN = {  # what is drawn -> its options
    TIMELINES: ("step", "ranks", "lanes", *LOOKS),
    PAGE: ("step", "ranks"),
    TABLE: (*TABLE_NAMES, *LOOKS),
    LOGS: ("x", *LOOKS),
}
HELP = "draw a timeline as PNG, SVG, PDF or interactive page"
OPTIONS = (
    Option(
        "predicted",
        None,
        "timeline: predicted, or the only one; or a table of sweep, or a log of train",
        Path,
    ),
    Option(
        "measured", None, "timeline to draw with it, of the same net; or more logs", Path, nargs="*"
    ),
    Option("-o --output", "FILE", ".png, .svg, .pdf or .html", output_file, required=True),
    Option("--step", "N", "step to draw; default: the median one", int),
    Option("--ranks", "RANK,...", "ranks to draw, such as 0,7 or 0-3"),
    Option("--lanes", "NAME,...", "streams to draw, such as compute,between", str, ""),
    Option("--width", "LENGTH", "width of the picture; default: 14in, of a table 7in", INCHES),
    Option("--height", "LENGTH", "height; default: follows from the lanes and --font-size", INCHES),
    Option("--font-size", "LENGTH", "size of the text in bars; default: 7pt", POINTS),
    Option("--title", "TEXT", 'title, "" for none; default: what is drawn and its times'),
    *OF_TABLES,
    Flag("--json", "print the name of the file as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def plot(args: argparse.Namespace) -> None:
    """Draw the picture."""
    points = None if args.font_size is None else args.font_size * 72
    asked = {"width": args.width, "height": args.height, "font": points, "title": args.title}
    looks = {what: value for what, value in asked.items() if value is not None}
    kind = _kind(args)
    _check_options(args, kind)
    if kind == TABLE:
        if args.measured:
            others = ", ".join(map(str, args.measured))
            raise CommschedError(f"one table is drawn at a time, not {others}, too")
        _table(args, looks)
    elif kind == LOGS:
        _trainings(args, looks)
    else:
        _timeline(args, looks, page=kind == PAGE)
    told = f"drawn to {args.output}"
    print(json.dumps({"drawn": str(args.output)}) if args.json else told)


def _kind(args: argparse.Namespace) -> str:
    """Tell what is drawn."""
    if args.predicted.suffix.lower() in (".csv", ".parquet"):
        return TABLE
    if is_log(args.predicted):
        return LOGS
    return PAGE if args.output.suffix.lower() == ".html" else TIMELINES


def _check_options(args: argparse.Namespace, kind: str) -> None:
    """Refuse options that change nothing in what is drawn."""
    taken = TAKEN[kind]
    for one, others in WITHOUT.items():
        if one in taken and getattr(args, one):
            kind, taken = f"{kind} with --{one}", tuple(n for n in taken if n not in others)
    for name in {name: None for names in TAKEN.values() for name in names if name not in taken}:
        value = getattr(args, name)
        if value is not None and value is not False and value not in ("", []):
            known = ", ".join(map(_flag, taken))
            raise CommschedError(f"{_flag(name)} changes nothing in {kind}, which takes {known}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _table(args: argparse.Namespace, looks: dict[str, Any]) -> None:
    """Draw the table of a sweep."""
    from commsched.plot.study import StudyPicture, draw
    from commsched.study.rows import read

    asked = {"x": args.x, "y": args.y, "value": args.value, "pareto": args.pareto}
    wanted = StudyPicture(
        **{key: value for key, value in asked.items() if value},
        lines=tuple(filter(None, args.lines.split(","))),
        break_even=args.break_even,
        where=pairs(args.where, "--where"),
        prices={name: _money(text) for name, text in _prices(args.price_per_hour)},
        **looks,
    )
    draw(read(args.predicted), args.output, wanted)


def _prices(words: list[str]) -> list[tuple[str, str]]:
    return list(pairs(words, "--price-per-hour").items())


def _money(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise CommschedError(f"--price-per-hour: money is a number such as 24.48, got {text!r}")
    return value


def _trainings(args: argparse.Namespace, looks: dict[str, Any]) -> None:
    """Draw the curves of trainings."""
    from commsched.plot.style import Style
    from commsched.plot.training import draw

    style = Style(**({"width": 10.0, "font": 10.0} | looks))
    draw([args.predicted, *args.measured], args.output, args.x or "step", style)


def _timeline(args: argparse.Namespace, looks: dict[str, Any], page: bool) -> None:
    """Draw one or two timelines."""
    ranks = None if args.ranks is None else _ranks(args.ranks)
    from commsched.plot.draw import draw
    from commsched.plot.style import Style
    from commsched.timeline import file as timeline_file
    from commsched.timeline.compare import swapped

    if not page:
        from commsched.plot.picture import check_suffix  # loads matplotlib

        check_suffix(args.output, ".png, .svg, .pdf or .html")  # before the work begins
    paths = [args.predicted, *args.measured]
    if len(paths) > 2:
        raise CommschedError(f"one or two timelines are drawn, got {len(paths)}")
    with working("reading"):
        sides = [timeline_file.read(path) for path in paths]
    if len(sides) == 2 and swapped(*sides):
        sides.reverse()
    lanes = tuple(filter(None, args.lanes.split(",")))
    style = Style(lanes=lanes, names=tuple(map(files.stem, paths)), **looks)
    with working("drawing"):
        draw(sides, args.output, args.step, ranks, style)


def _ranks(text: str) -> list[int]:
    """Read ranks, such as 0,3 or 0-3,12."""
    found: list[int] = []
    for part in text.split(","):
        ends = part.split("-")
        numbers = all(e.isascii() and e.isdecimal() and len(e) < 7 for e in ends)
        if len(ends) > 2 or not numbers or int(ends[0]) > int(ends[-1]):
            raise CommschedError(f"--ranks must be whole numbers such as 0,3 or 0-3, got {text!r}")
        found += range(int(ends[0]), int(ends[-1]) + 1)
    return found
