"""`commsched reproduce`: compare published numbers with predictions, paper by paper."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from commsched import files
from commsched.cli.options import Flag, Option, command
from commsched.terminal import show
from commsched.text_table import table

if TYPE_CHECKING:
    from commsched.lab.reproduce.paper import PublishedRow, Reproduction

EXAMPLE = """\
example:
  commsched reproduce
  commsched reproduce fft --json
  commsched reproduce samo -o reproduction

For each number that a paper prints, shows the prediction on the shipped machine and net, and its
error. Numbers that we derive from a paper's formulas have their own table. A further table lists
inputs that a paper does not state, with the prediction under an alternative input. A bar is the
largest allowed error: 15 % for results (times, speed-ups, shares, sizes), 1 % for formulas; for
derivations that leave out latency or are drawn at random, the table states it. A miss is red on a
terminal and has its cause. Ends with a verdict on each paper. With -o FOLDER, writes NAME.json, the
figure NAME.png and papers.md, the page of all tables, to that folder. Exits with status 1 if a bar
or a required trend is missed.
"""
HELP = "compare published tables with the simulator"
OPTIONS = (
    Option("paper", "PAPER", "samo, daso, zen, ...; default: all", nargs="?"),
    Option("-o --output", "FOLDER", "folder for tables and figures", Path),
    Flag("--json", "print rows and trends as JSON"),
)


@command(HELP, OPTIONS, EXAMPLE)
def reproduce(args: argparse.Namespace) -> int:
    """Print the table of each paper."""
    from commsched.lab.reproduce.paper import PAPERS
    from commsched.lab.reproduce.paper import reproduce as reproduced
    from commsched.progress import working

    names = list(PAPERS) if args.paper is None else [args.paper]
    if args.output is not None:
        assert PAPERS[names[0]]  # refuses an unknown paper before a folder is made
        files.make_folder(args.output)
    found = []
    for name in names:
        with working(f"predicting {name}"):
            found.append(reproduced(name))
        if args.output is not None:
            _keep(args.output, found[-1])
        if not args.json:
            _show(found[-1])
    if args.output is not None:
        _write_page(args.output)
    if args.json:
        print(json.dumps([_data(one) for one in found], indent=1, allow_nan=False))
    else:
        print(_count(found))
        for one in found:
            show(f"{one.name}: {one.verdict}", alarming=not one.met)
    return int(not all(one.met for one in found))


def _keep(folder: Path, found: "Reproduction") -> None:
    from commsched.lab.reproduce.paper import write
    from commsched.plot.reproduction import draw

    write(folder / f"{found.name}.json", found)
    draw(found, folder / f"{found.name}.png")


def _write_page(folder: Path) -> None:
    """Write the page of all papers with a table in the folder, from this call or an earlier one."""
    from commsched.lab.reproduce.page import page
    from commsched.lab.reproduce.paper import PAPERS, read

    tables = [folder / f"{name}.json" for name in PAPERS]
    text = page([read(path) for path in tables if path.exists()], "{}.png")
    files.write_bytes(folder / "papers.md", text.encode())


def _data(found: "Reproduction") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(found)
    for row, data in zip(found.rows, plain["rows"], strict=True):
        data |= {"error": row.error, "met": row.met}
    return plain


def _show(found: "Reproduction") -> None:
    """Print source, tables by group, trends, causes, and notes once each."""
    notes: dict[str, int] = {}
    print(f"{found.name}: {found.source}")
    tables = {
        "published": [row for row in found.rows if row.published is not None],
        "derived": [row for row in found.rows if row.derived is not None],
        "not published": [row for row in found.rows if row.wanted is None],
    }
    for kind, rows in tables.items():
        if rows:
            _table(kind, rows, notes)
    _inferred(found.rows)
    for trend in found.trends:
        verdict = "yes" if trend.met else "NO" if trend.required else "no"
        show(f"{verdict:>4}  {trend.what}: {trend.shown}", alarming=verdict == "NO")
    for note, number in notes.items():
        print(f"({number}) {note}")
    print(flush=True)


def _table(kind: str, rows: "Sequence[PublishedRow]", notes: dict[str, int]) -> None:
    """Print rows by group, each miss with its cause below it."""
    lines: list[Sequence[str]] = []
    said: list[tuple[bool, str]] = []  # of each line: whether its bar is missed, and why
    for group in dict.fromkeys(row.group for row in rows):
        lines.append((f"{group}:", *[""] * 7))
        said.append((False, ""))
        for row in rows:
            if row.group == group:
                lines.append(_line(row, notes))
                said.append((not row.met, row.cause))
    header = ("", kind, "ours", "unit", "error", "bar", "inputs", "notes")
    head, *told = table(header, lines, (1, 2, 4, 5)).split("\n")
    print(head)
    for line, (missed, cause) in zip(told, said, strict=True):
        show(line, alarming=missed)
        if missed and cause:
            show(f"    missed because {cause}", alarming=True)
    print()


def _inferred(rows: "Sequence[PublishedRow]") -> None:
    """Print inputs that the paper does not state, and predictions under their alternative."""
    lines = [
        (each.inferred, each.instead, row.group, row.what, *_numbers(row, each.predicted))
        for row in rows
        for each in row.inferred
    ]
    if lines:
        before: tuple[str, ...] = ("", "", "")
        short: list[tuple[str, ...]] = []
        for line in sorted(lines, key=lambda line: line[:3]):
            repeated = [a if a != b else "" for a, b in zip(line[:3], before, strict=True)]
            short.append((*repeated, *line[3:]))
            before = line[:3]
        header = ("inferred", "or else", "of", "", "wanted", "ours", "or else", "unit")
        print(table(header, short, (4, 5, 6)), end="\n\n")


def _numbers(row: "PublishedRow", other: float | None) -> tuple[str, str, str, str]:
    return _number(row.wanted), _number(row.predicted), _number(other), row.unit


def _line(row: "PublishedRow", notes: dict[str, int]) -> Sequence[str]:
    compared = row.error is not None
    bar = "-" if row.measured else f"{row.bar:.0%}" if row.met else f"{row.bar:.0%} MISSED"
    return (
        f"  {row.what}",
        _number(row.wanted),
        _number(row.predicted),
        row.unit,
        f"{round(row.error, 3) + 0.0:+.1%}" if row.error is not None else "",  # never -0.0 %
        bar if compared else "",
        row.inputs,
        f"({notes.setdefault(row.note, len(notes) + 1)})" if row.note else "",
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _count(found: "Sequence[Reproduction]") -> str:
    rows = [row for one in found for row in one.rows]
    compared = [row for row in rows if row.error is not None and not row.measured]
    results = [row for row in compared if row.is_result]
    trends = [trend for one in found for trend in one.trends if trend.required]
    return (
        f"{len(rows)} numbers, {len(compared)} of them predicted and compared;"
        f" published results: {sum(row.met for row in results)} of {len(results)} within their bar;"
        f" formulas and derivations: {sum(row.met for row in compared if not row.is_result)} of"
        f" {len(compared) - len(results)}; orders and"
        f" limits: {sum(trend.met for trend in trends)} of {len(trends)} that must hold do"
    )
