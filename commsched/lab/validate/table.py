"""The table of a validation: one row per cell, its summary per fabric, and the bars."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from commsched import files
from commsched.lab.validate.fabrics import GPU, ON_THIS, SHARED
from commsched.machine import trust

MEDIAN, P90, MOST, COLLECTIVE, HIDDEN = 0.05, 0.10, 0.15, trust.LIMIT, 0.95
SHARED_MEDIAN = 0.10  # in shared memory, where runs vary more
ON_GPU, CROWDED = 0.10, 0.20  # each cell of two ranks of a machine's GPUs, and of more


class ValidationRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One cell: predicted and measured seconds are medians over the steps."""

    fabric: str
    net: str
    family: str
    method: str
    ranks: int
    nbytes: float  # of gradients, B per rank
    plan: str  # its hash
    predicted: float
    measured: float
    spread: float  # p90 - p10 of the measured steps, as a share of their median
    collectives: tuple[tuple[float, float], ...]  # predicted and measured s of each bucket's
    phases: tuple[tuple[float, float], ...]  # predicted and measured s of each of their phases
    hidden: tuple[float, float]  # share of communication under compute: predicted, measured
    stolen: float | None = None  # of the processor time, by other guests of the host; None: unknown

    @property
    def cell(self) -> tuple[str, str, str]:
        """Return net, fabric and family, which identify the cell."""
        return self.fabric, self.net, self.family

    @property
    def error(self) -> float:
        """Return the relative error, positive if the prediction is too high."""
        return self.predicted / self.measured - 1.0


class _ValidationFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["commsched-validation/2"] = "commsched-validation/2"
    rows: tuple[ValidationRow, ...]


def read(path: Path) -> list[ValidationRow]:
    """Read a table; raise CommschedError for any other file."""
    return list(files.read(path, _ValidationFile).rows)


def write(path: Path, rows: Iterable[ValidationRow]) -> None:
    """Write a table."""
    files.write(path, msgspec.to_builtins(_ValidationFile(rows=tuple(rows))))


class Summary(NamedTuple):
    """Absolute relative errors over some rows."""

    what: str
    cells: int
    median: float
    p90: float
    most: float
    collective: float  # median over the buckets' exchanges, all phases of one together
    phase: float  # median over the phases
    hidden: float  # median of the share that was hidden over the share that was planned


def summary(what: str, rows: Sequence[ValidationRow]) -> Summary:
    """Summarise at least one row."""
    errors = np.abs([row.error for row in rows])
    shares = [row.hidden[1] / row.hidden[0] for row in rows if row.hidden[0]]
    return Summary(
        what=what,
        cells=len(rows),
        median=float(np.median(errors)),
        p90=float(np.quantile(errors, 0.9)),
        most=float(errors.max()),
        collective=_off(pair for row in rows for pair in row.collectives),
        phase=_off(pair for row in rows for pair in row.phases),
        hidden=float(np.median(shares)) if shares else 1.0,
    )


def _off(pairs: Iterable[tuple[float, float]]) -> float:
    """Return the median relative error of predicted against measured values."""
    predicted, measured = np.array(list(pairs)).T
    return float(np.median(np.abs(predicted / measured - 1.0)))


class Bar(NamedTuple):
    """A value and the limit that it must keep."""

    what: str
    value: float
    limit: float
    met: bool


def bars(rows: Sequence[ValidationRow]) -> list[Bar]:
    """Return the bars that apply to the rows."""
    found = []
    shaped = [row for row in rows if row.fabric not in ON_THIS]
    if shaped:
        s = summary("", shaped)
        worst = max(shaped, key=lambda row: abs(row.error) / _most(row))
        found += [
            _below("testbed, iteration, median error", s.median, MEDIAN),
            _below("testbed, iteration, p90 error", s.p90, P90),
            _below(f"testbed, worst cell ({' '.join(worst.cell)})", abs(worst.error), _most(worst)),
            _below("testbed, collectives, median error", s.collective, COLLECTIVE),
            Bar("testbed, hidden of what is planned", s.hidden, HIDDEN, s.hidden >= HIDDEN),
        ]
    shared = [row for row in rows if row.fabric == SHARED]
    if shared:
        median = summary("", shared).median
        found.append(_below("shared memory, iteration, median error", median, SHARED_MEDIAN))
    for row in rows:
        if row.fabric == GPU:
            what = f"{row.ranks} ranks on GPUs, {row.net} {row.family}"
            limit = ON_GPU if row.ranks <= 2 else CROWDED
            found.append(_below(what, abs(row.error), limit))
    return found


def _most(row: ValidationRow) -> float:
    """Return the largest allowed error of a cell: twice its run's spread, if that is more."""
    return max(MOST, 2.0 * row.spread)


def _below(what: str, value: float, limit: float) -> Bar:
    return Bar(what, value, limit, value <= limit)
