"""The Markdown page of all papers: verdicts, and every published number beside ours."""

from collections.abc import Sequence

from commsched.lab.reproduce.paper import FORMULA, RESULT, PublishedRow, Reproduction

HEAD = f"""\
# What the papers say

`commsched reproduce [PAPER]` predicts every published number that was available to us, on one
machine file per cluster. A bar of {RESULT:.0%} holds for every published result (times, speed-ups,
shares, measured sizes), one of {FORMULA:.0%} for printed formulas and for numbers that we derive
from a paper, which the command shows in a table of their own. Derivations that leave latency out,
are drawn at random or take another net's slope have bars of 5 to 15%, which that table shows. No
input is taken from the row that it predicts; every input that a paper does not state is named, with
the result under an alternative.
This page is written by
`commsched reproduce -o traces/reproduce; python plots/reproduce.py`.

| paper | verdict |
|---|---|
"""
COLUMNS = "| number | published | ours | error | |\n|---|---|---|---|---|\n"
INFERRED = "| inferred input | or else | number | ours | or else |\n|---|---|---|---|---|\n"


def page(found: Sequence[Reproduction], pictures: str) -> str:
    """Return the page; `pictures` is the path of a paper's figure, with {} for its name."""
    verdicts = "".join(f"| {one.name} | {one.verdict} |\n" for one in found)
    return f"{HEAD}{verdicts}" + "".join(_paper(one, pictures.format(one.name)) for one in found)


def _paper(found: Reproduction, picture: str) -> str:
    """Return a paper's source, figure, and the table of its published numbers."""
    rows = [row for row in found.rows if row.published is not None]
    text = f"\n## {found.name}\n\n{found.source}. [Figure]({picture})\n"
    if rows:
        text += f"\n{COLUMNS}"
    for group in dict.fromkeys(row.group for row in rows):
        inside = [row for row in rows if row.group == group]
        unit = f", {inside[0].unit}" if inside[0].unit else ""
        text += f"| **{group}{unit}** | | | | |\n" + "".join(map(_line, inside))
    return text + _inferred(found.rows)


def _inferred(rows: Sequence[PublishedRow]) -> str:
    """Return the inputs that the paper does not state, with results under their alternative."""
    lines = [
        f"| {each.inferred} | {each.instead} | {row.group}, {row.what} | {row.predicted:.4g} |"
        f" {each.predicted:.4g} |\n"
        for row in rows
        for each in row.inferred
        if row.published is not None and row.predicted is not None and each.predicted is not None
    ]
    return f"\n{INFERRED}{''.join(lines)}" if lines else ""


def _line(row: PublishedRow) -> str:
    if row.error is None:
        return f"| {row.what} | {row.published:.4g} | | | {row.note} |\n"
    error = f"{round(row.error, 3) + 0.0:+.1%}"  # never -0.0 %
    verdict = row.note if row.measured else "" if row.met else f"missed: {row.cause}"
    return f"| {row.what} | {row.published:.4g} | {row.predicted:.4g} | {error} | {verdict} |\n"
