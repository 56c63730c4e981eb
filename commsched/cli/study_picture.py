"""The pictures of a study: options of `plot` for tables that `sweep` has written."""

import argparse
from pathlib import Path
from typing import Any

from commsched.cli.arguments import pairs
from commsched.cli.options import Flag, ListOption, Option, Table
from commsched.errors import CommschedError

OPTIONS: Table = (
    Option(
        "--x",
        "COLUMN",
        "of a table: bandwidth, ranks, nodes, net, machine, ...; of logs: step or seconds",
        str,
        "",
    ),
    Option("--y", "COLUMN", "of a table: step, exposed, bytes, memory, bound, or a list", str, ""),
    Option("--lines", "COLUMN,...", "of a table: a line for each; default: what differs", str, ""),
    Option("--value", "COLUMN", "of a table: a heat map of it over --x and --y", str, ""),
    Option("--pareto", "COLUMN", "of a table: the step against memory, bytes or money", str, ""),
    Flag(
        "--break-even",
        "of a table: mark where --allow stops to save 1%% of a step",
    ),
    ListOption("--where", "COLUMN=VALUE", "of a table: only these rows"),
    ListOption("--price-per-hour", "MACHINE=MONEY", "of a table: what a node costs"),
)

NAMES = ("x", "y", "lines", "value", "pareto", "break_even", "where", "price_per_hour")
WITHOUT = {"value": ("lines", "pareto", "break_even"), "pareto": ("x", "y", "break_even")}


def is_table(path: Path) -> bool:
    """Tell whether a file is a table of `sweep`, by its name."""
    return path.suffix.lower() in (".csv", ".parquet")


def draw(table: Path, path: Path, args: argparse.Namespace, **style: Any) -> None:
    """Draw a table as the options say."""
    from commsched.plot.study import StudyPicture
    from commsched.plot.study import draw as draw_rows
    from commsched.study.rows import read

    asked = {"x": args.x, "y": args.y, "value": args.value, "pareto": args.pareto}
    wanted = StudyPicture(
        **{key: value for key, value in asked.items() if value},
        lines=tuple(filter(None, args.lines.split(","))),
        break_even=args.break_even,
        where=pairs(args.where, "--where"),
        prices={name: _money(text) for name, text in _prices(args.price_per_hour)},
        **style,
    )
    draw_rows(read(table), path, wanted)


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
