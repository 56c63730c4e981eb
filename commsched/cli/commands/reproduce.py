"""`commsched reproduce`: compare published numbers with predictions, paper by paper."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched import files
from commsched.cli.options import Commands, Flag, Option, add_command
from commsched.text_table import table

if TYPE_CHECKING:
    from commsched.lab.reproduce.paper import PublishedRow, Reproduction

EXAMPLE = """\
example:
  commsched reproduce
  commsched reproduce fft --json
  commsched reproduce samo -o reproduction

For each published number, prints the library's prediction on the shipped machine and net, and its
error. A bar is the largest allowed error: 1 % for formulas, 10 % for FFT's exchanges and for random
draws, 15 % for SAMO's collectives. With -o FOLDER, writes NAME.json and the figure NAME.png there.
Exits with status 1 if a bar or a required trend is missed.
"""
HEADER = ("", "published", "predicted", "unit", "error", "bar", "inputs", "notes")


OPTIONS = (
    Option("paper", "PAPER", "samo, daso, zen, ...; default: all", nargs="?"),
    Option("-o --output", "FOLDER", "folder for tables and figures", Path),
    Flag("--json", "print rows and trends as JSON"),
)


def add(commands: Commands) -> None:
    """Declare the command."""
    text = "compare published tables with the simulator"
    add_command(commands, "reproduce", reproduce, text, OPTIONS, EXAMPLE)


def reproduce(args: argparse.Namespace) -> int:
    """Print the table of each paper."""
    from commsched.lab.reproduce.paper import PAPERS
    from commsched.lab.reproduce.paper import reproduce as reproduced
    from commsched.progress import working

    names = list(PAPERS) if args.paper is None else [args.paper]
    if args.output is not None:
        assert PAPERS[names[0]]  # an unknown one is refused before a folder is made
        files.make_folder(args.output)
    found = []
    for name in names:
        with working(f"predicting {name}"):
            found.append(reproduced(name))
        if args.output is not None:
            _keep(args.output, found[-1])
        if not args.json:
            print(_text(found[-1]), end="\n\n", flush=True)
    if args.json:
        print(json.dumps([_data(one) for one in found], indent=1, allow_nan=False))
    else:
        print(_verdict(found))
    return int(not all(one.met for one in found))


def _keep(folder: Path, found: "Reproduction") -> None:
    from commsched.lab.reproduce.paper import write
    from commsched.plot.reproduction import draw

    write(folder / f"{found.name}.json", found)
    draw(found, folder / f"{found.name}.png")


def _data(found: "Reproduction") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    for row, data in zip(found.rows, plain["rows"], strict=True):
        data |= {"error": row.error, "met": row.met}
    return plain


def _text(found: "Reproduction") -> str:
    """Source, rows by group, trends, notes once each."""
    notes: dict[str, int] = {}
    lines: list[Sequence[str]] = []
    for group in dict.fromkeys(row.group for row in found.rows):
        lines.append((f"{group}:", *[""] * (len(HEADER) - 1)))
        lines += [_line(row, notes) for row in found.rows if row.group == group]
    text = [f"{found.name}: {found.source}", table(HEADER, lines, (1, 2, 4, 5)), ""]
    for trend in found.trends:
        verdict = "yes" if trend.met else "NO" if trend.required else "no"
        text.append(f"{verdict:>4}  {trend.what}: {trend.shown}")
    text += [f"({number}) {note}" for note, number in notes.items()]
    return "\n".join(text)


def _line(row: "PublishedRow", notes: dict[str, int]) -> Sequence[str]:
    said = [f"inferred: {row.inferred}"] if row.inferred else []
    said += [row.note] if row.note else []
    marks = [f"({notes.setdefault(text, len(notes) + 1)})" for text in said]
    bar = "" if row.bar is None else f"{row.bar:.0%}" if row.met else f"{row.bar:.0%} MISSED"
    return (
        f"  {row.what}",
        _number(row.published, "not available" if row.predicted is None else "-"),
        _number(row.predicted, "-"),
        row.unit,
        "" if row.error is None else f"{round(row.error, 3) + 0.0:+.1%}",  # never -0.0 %
        bar,
        row.inputs,
        " ".join(marks),
    )


def _number(value: float | None, missing: str) -> str:
    return missing if value is None else f"{value:.4g}"


def _verdict(found: "Sequence[Reproduction]") -> str:
    rows = [row for one in found for row in one.rows]
    barred = [row for row in rows if row.bar is not None]
    trends = [trend for one in found for trend in one.trends if trend.required]
    return (
        f"{len(rows)} numbers, {sum(row.error is not None for row in rows)} of them predicted and"
        f" compared; bars: {sum(row.met for row in barred)} of {len(barred)} hold; orders and"
        f" limits: {sum(trend.met for trend in trends)} of {len(trends)} that must hold do"
    )
