"""The report of a validation: errors by group, bars and causes of misses, intervals, decisions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commsched.exchange.registry import find_method
from commsched.lab.validate.cells import PLANNED, TRAIN, draw
from commsched.lab.validate.fabrics import GPU
from commsched.lab.validate.table import DecisionRow, FailedRow, Pair, Row, ValidationRow
from commsched.machine.trust import steady
from commsched.text_table import in_markdown
from commsched.units import count


class Limits(NamedTuple):
    """The largest errors allowed in a group of cells."""

    median: float
    p90: float
    signed: float  # absolute value of the mean signed error
    exchanges: float  # median


SHARING = Limits(0.08, 0.20, 0.04, 0.15)
LIMITS = {
    "a core per rank": Limits(0.04, 0.12, 0.02, 0.10),
    "ranks sharing cores": SHARING,
    "real training, a core per rank": Limits(0.06, 0.15, 0.03, 0.10),
    "real training, ranks sharing cores": SHARING,
}
MOST = 0.25  # error of a single cell; twice its run's spread if that is larger
INSIDE = (0.70, 0.90)  # allowed share of measured medians within p10 to p90 of their predictions
REGRET, WORST_REGRET, TAU = 1.03, 1.10, 0.8
ON_GPU, CROWDED = 0.10, 0.20  # error of each GPU cell of two ranks, and of more ranks
CAUSES = 3  # most parts of an error that are reported
MOST_NAMES = 8  # most names listed of left-out cells


class Summary(NamedTuple):
    """Relative errors over some rows, positive where a prediction is too long."""

    what: str
    cells: int
    median: float  # of absolute errors; p90 and worst, too
    p90: float
    worst: float
    signed: float  # mean
    exchanges: float  # median absolute error over the buckets' exchanges
    exchanges_signed: float  # median
    inside: float | None  # share of measured medians in the interval of their prediction


def summary(what: str, rows: Sequence[ValidationRow]) -> Summary:
    """Summarise at least one row."""
    errors = np.array([row.error for row in rows])
    pairs: list[Pair] = [pair for row in rows for pair in row.exchanges if pair[1] > 0]
    exchanges = np.array([p / m - 1.0 for p, m in pairs] or [0.0])
    known = [row.inside for row in rows if row.inside is not None]
    return Summary(
        what=what,
        cells=len(rows),
        median=float(np.median(np.abs(errors))),
        p90=float(np.quantile(np.abs(errors), 0.9)),
        worst=float(np.abs(errors).max()),
        signed=float(errors.mean()),
        exchanges=float(np.median(np.abs(exchanges))),
        exchanges_signed=float(np.median(exchanges)),
        inside=float(np.mean(known)) if known else None,
    )


def kind_of_net(row: ValidationRow) -> str:
    """Return the kind of a generated net, or the name of a shipped net."""
    return f"{row.net.partition(':')[0]}{' (trained)' if row.compute == TRAIN else ''}"


def ratio(row: ValidationRow) -> str:
    """Describe the length of a row's compute."""
    return f"{row.ratio:g} x exchange" if row.ratio else "the net's own"


def _method(row: ValidationRow) -> str:
    """Return the codec of a pair, or the method."""
    return row.method if row.method == PLANNED else find_method(row.method).coding


def _collective(row: ValidationRow) -> str:
    """Return the collective of a pair."""
    method = None if row.method == PLANNED else find_method(row.method)
    return method.family if method is not None and method.codec is not None else "no pair"


def _memory(row: ValidationRow) -> str:
    """Describe the speed of memory during a run whose exchanges copy memory."""
    if row.memory is None:
        return "on a network"
    if steady(row.memory):
        return "as calibrated"
    return "slower" if row.memory > 1.0 else "faster"


# The dimensions of the table and the figure.
DIMENSIONS: dict[str, Callable[[ValidationRow], str]] = {
    "(a) compute": ratio,
    "(b) computing": lambda row: row.compute,
    "(c) bed": lambda row: row.bed,
    "(d) codec, or method of several phases": _method,
    "(d) collective": _collective,
    "(e) net": kind_of_net,
    "memory": _memory,
}


class Bar(NamedTuple):
    """A value and the limits that it must keep."""

    what: str
    value: float
    least: float
    most: float
    why: str = ""  # source of the error of a missed bar
    share: bool = True  # printed as a percentage

    @property
    def met(self) -> bool:
        """Tell whether the value keeps the bar."""
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        def shown(value: float) -> str:
            return f"{value:.1%}" if self.share else f"{value:.3g}"

        ends = []
        ends += [f"at least {shown(self.least)}"] if self.least > -np.inf else []
        ends += [f"at most {shown(self.most)}"] if self.most < np.inf else []
        why = f"; {self.why}" if self.why and not self.met else ""
        return f"{self.what}: {shown(self.value)} ({', '.join(ends)}{why})"


FEW = 10  # least cells for the bar INSIDE


def bars(rows: Sequence[Row]) -> list[Bar]:
    """Return the bars that apply to the rows."""
    cells = measured(rows)
    found: list[Bar] = []
    for group, limits in LIMITS.items():
        if inside := [row for row in cells if row.group == group]:
            found += _errors(summary(group, inside), limits, causes(inside))
    known = [row.inside for row in cells if row.inside is not None]
    if len(known) >= FEW:
        what = "measured medians inside p10 to p90 of their predictions"
        found.append(Bar(what, float(np.mean(known)), *INSIDE))
    for row in cells:
        if row.group == GPU:
            limit = ON_GPU if row.ranks <= 2 else CROWDED
            what = f"{row.ranks} ranks on GPUs, {row.net} {row.method}"
            found.append(_below(what, abs(row.error), limit))
        elif abs(row.error) > _most(row):
            found.append(_below(str(row.cell), abs(row.error), _most(row), causes([row])))
    decided = [row for row in rows if isinstance(row, DecisionRow)]
    return [*found, *_decisions(decided)] if decided else found


def _errors(s: Summary, limits: Limits, why: str) -> Iterator[Bar]:
    yield _below(f"{s.what}, iteration, median error", s.median, limits.median, why)
    yield _below(f"{s.what}, iteration, p90 error", s.p90, limits.p90, why)
    what = f"{s.what}, iteration, mean signed error"
    yield Bar(what, s.signed, -limits.signed, limits.signed, why)
    yield _below(f"{s.what}, exchanges, median error", s.exchanges, limits.exchanges, why)


def _decisions(rows: Sequence[DecisionRow]) -> Iterator[Bar]:
    regrets = [row.regret for row in rows]
    worst = rows[int(np.argmax(regrets))]
    wrong = [str(row.cell) for row in rows if not row.right]
    yield Bar("decisions, median regret", float(np.median(regrets)), 1, REGRET, share=False)
    what = f"decisions, worst regret ({worst.cell})"
    yield Bar(what, worst.regret, 1, WORST_REGRET, share=False)
    tau = float(np.median([row.tau for row in rows]))
    yield Bar("decisions, Kendall's tau, median", tau, TAU, 1, share=False)
    right = 1.0 - len(wrong) / len(rows)
    yield Bar("whether to compress, right", right, 1.0, 1.0, f"wrong: {', '.join(wrong)}")


def _most(row: ValidationRow) -> float:
    return max(MOST, 2.0 * row.spread)


def _below(what: str, value: float, limit: float, why: str = "") -> Bar:
    return Bar(what, value, -np.inf, limit, why)


def causes(rows: Sequence[ValidationRow]) -> str:
    """Name the operations and causes of the errors, as mean shares of the iteration."""
    sums: dict[tuple[str, str], float] = {}
    for row in rows:
        for what, cause, share in row.why:
            sums[what, cause] = sums.get((what, cause), 0.0) + share / len(rows)
    largest = sorted(sums.items(), key=lambda item: -abs(item[1]))[:CAUSES]
    return ", ".join(f"{what}: {cause} {share:+.1%}" for (what, cause), share in largest)


def measured(rows: Iterable[Row]) -> list[ValidationRow]:
    """Return the rows of single cells that have results."""
    return [row for row in rows if isinstance(row, ValidationRow)]


HEADER = ("", "cells", "median", "p90", "worst", "signed", "exchanges", "signed", "in interval")


def summaries(rows: Sequence[ValidationRow]) -> list[Summary]:
    """Return the errors of all rows, of each group, and along each dimension."""
    found = [summary("all", rows)] if rows else []
    found += _along(lambda row: row.group, rows)
    for name, of in DIMENSIONS.items():
        some = sorted(_along(of, rows), key=lambda s: s.what)
        found += [s._replace(what=f"{name}: {s.what}") for s in some]
    return found


def _along(of: Callable[[ValidationRow], str], rows: Sequence[ValidationRow]) -> list[Summary]:
    names = dict.fromkeys(map(of, rows))
    return [summary(name, [row for row in rows if of(row) == name]) for name in names]


def summary_cells(s: Summary) -> tuple[str, ...]:
    """Return a summary as a line of a table."""
    inside = "-" if s.inside is None else f"{s.inside:.0%}"
    absolute = (f"{x:.1%}" for x in (s.median, s.p90, s.worst))
    numbers = (f"{s.signed:+.1%}", f"{s.exchanges:.1%}", f"{s.exchanges_signed:+.1%}")
    return (s.what, str(s.cells), *absolute, *numbers, inside)


def left_out(rows: Sequence[Row], seed: int = 0) -> str:
    """Name the cells of a whole run that are not among the rows, and those that failed."""
    there = {row.cell for row in rows if not isinstance(row, FailedRow)}
    whole = [cell for part in draw(seed) for cell in part]
    missing = [cell for cell in whole if cell not in there]
    failed = [row for row in rows if isinstance(row, FailedRow)]
    text = count(len(rows) - len(failed), "cell")
    if missing and len(missing) < len(whole):
        text += f"; {len(missing)} of the {len(whole)} of seed {seed} are left out"
        for what, of in (("beds", "bed"), ("methods", "method"), ("nets to train", "net")):
            some = [c for c in missing if c.method and (what != "nets to train" or not c.ratio)]
            gone = {getattr(c, of) for c in some} - {getattr(c, of) for c in there}
            if gone:
                shown = ", ".join(sorted(gone)[:MOST_NAMES])
                more = ", ..." if len(gone) > MOST_NAMES else ""
                text += f"; {len(gone)} {what} with all their cells: {shown}{more}"
    lines = [text, *(f"failed: {row.cell}: {row.why.splitlines()[0]}" for row in failed)]
    return "\n".join(lines)


def markdown(rows: Sequence[Row], seed: int = 0) -> str:
    """Return the whole report as Markdown."""
    lines = in_markdown(HEADER, map(summary_cells, summaries(measured(rows))))
    lines += [
        "",
        *in_markdown(("bar", ""), ((b, "met" if b.met else "**MISSED**") for b in bars(rows))),
    ]
    decided = [row for row in rows if isinstance(row, DecisionRow)]
    if decided:
        lines += ["", *in_markdown(DECIDED, map(decision_cells, decided))]
    return "\n".join([*lines, "", *left_out(rows, seed).split("\n"), ""])


DECIDED = ("decision", "chosen", "best measured", "regret", "tau", "compress or not")


def decision_cells(row: DecisionRow) -> tuple[str, ...]:
    """Return a decision as a line of a table."""
    best = min(row.plans, key=lambda plan: plan.seconds)
    return (
        str(row.cell).removesuffix(" decision"),
        f"{row.plans[0].names[0]}, {row.plans[0].seconds * 1e3:.1f} ms",
        f"{best.names[0]}, {best.seconds * 1e3:.1f} ms",
        f"{row.regret:.3f}",
        f"{row.tau:.2f}",
        "right" if row.right else "wrong",
    )


def draw_figure(rows: Sequence[ValidationRow], path: Path) -> None:
    """Draw the signed errors of at least one row."""
    from commsched.plot.accuracy import draw as figure

    limits = {group: limit.median for group, limit in LIMITS.items()}
    figure(rows, lambda row: row.error, lambda row: row.group, DIMENSIONS, limits, path)
