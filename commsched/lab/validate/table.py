"""The file of a validation, with a line per finished cell, and its rows."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np

from commsched import files
from commsched.errors import CommschedError
from commsched.lab.validate.cells import TRAIN, ValidationCell
from commsched.lab.validate.fabrics import GPU
from commsched.run.job.lock import locked

Pair = tuple[float, float]  # predicted and measured


class _Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="table"):
    format: Literal["commsched-validation/3"] = "commsched-validation/3"


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of every row."""

    bed: str
    net: str
    compute: str
    ratio: float  # compute over a dense exchange of the net; 0: the net's own
    method: str  # "": a decision between plans
    machine: str  # identity of the calibration
    cores: int  # of this machine, shared by all ranks of a bed

    @property
    def cell(self) -> ValidationCell:
        """Return the identity of the row."""
        return ValidationCell(self.bed, self.net, self.compute, self.ratio, self.method)

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        hosts, lanes = self.bed.partition("-")[0].split("x")
        return int(hosts) * int(lanes)

    @property
    def group(self) -> str:
        """Return the name of the row's group; each group has its own bars."""
        if self.bed.endswith(f"-{GPU}"):
            return GPU
        shared = "a core per rank" if self.ranks <= self.cores else "ranks sharing cores"
        return f"real training, {shared}" if self.compute == TRAIN else shared


class ValidationRow(_Row, frozen=True, kw_only=True, tag="cell"):
    """One cell: predicted and measured seconds are medians over the steps."""

    plan: str  # its hash
    nbytes: float  # of gradients, B per rank
    predicted: float
    measured: float
    spread: float  # p90 - p10 of the measured steps, as a share of their median
    stolen: float  # share of the processor time that other guests of the host took
    memory: float | None = None  # s of a memory copy beside the run, over those at the calibration
    exchanges: tuple[Pair, ...]  # s of each bucket's exchange, summed over phases
    interval: Pair | None  # p10 and p90 of the prediction, s
    # The error of the iteration in parts: operation, cause, share of the measured iteration.
    why: tuple[tuple[str, str, float], ...] = ()

    @property
    def error(self) -> float:
        """Return the relative error, positive if the prediction is too high."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool | None:
        """Return whether the interval contains the measured median; None without an interval."""
        return (
            None if self.interval is None else self.interval[0] <= self.measured <= self.interval[1]
        )


class MeasuredPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan of a decision."""

    names: tuple[str, ...]  # of the planners that return it
    compresses: bool
    predicted: float  # s
    measured: tuple[float, ...]  # s, the median step of each run

    @property
    def seconds(self) -> float:
        """Return the iteration of the fastest run: other load can only lengthen a run."""
        return min(self.measured)


class DecisionRow(_Row, frozen=True, kw_only=True, tag="decision"):
    """The measured plans of a case; the first one is the planner's choice."""

    plans: tuple[MeasuredPlan, ...]

    @property
    def regret(self) -> float:
        """Return the choice's iteration over the shortest one."""
        return self.plans[0].seconds / min(plan.seconds for plan in self.plans)

    @property
    def tau(self) -> float:
        """Return Kendall's rank correlation of predicted and measured iterations.

        tau = (concordant - discordant pairs) / pairs
        Source: Kendall, "A new measure of rank correlation", Biometrika 30, 1938.
        """
        some = self.plans
        signs = [
            np.sign((a.predicted - b.predicted) * (a.seconds - b.seconds))
            for i, a in enumerate(some)
            for b in some[:i]
        ]
        return float(np.mean(signs)) if signs else 1.0

    @property
    def right(self) -> bool:
        """Tell whether the measurement confirms the choice to compress or not, within SAME."""
        least = {
            kind: min((p.seconds for p in self.plans if p.compresses is kind), default=float("inf"))
            for kind in (True, False)
        }
        chosen = self.plans[0].compresses
        return least[chosen] <= SAME * least[not chosen]


class FailedRow(_Row, frozen=True, kw_only=True, tag="failed"):
    """A cell without a result, which is tried again by the next run."""

    why: str


SAME = 1.03  # ratio of two iterations that a few steps can hardly tell apart
Row = ValidationRow | DecisionRow | FailedRow
Line = _Header | ValidationRow | DecisionRow | FailedRow


def read(path: Path) -> list[Row]:
    """Read the newest row of each cell; skip a last line that a crash has torn."""
    found: dict[ValidationCell, Row] = {}
    for number, text in enumerate(files.read_text(path, files.MAX_BYTES).split("\n")[:-1], 1):
        where = f"{path}, line {number}"
        line: Line = files.convert(files.parse(text, where), Line, where)  # type: ignore[arg-type]
        if isinstance(line, _Header) != (number == 1):
            raise CommschedError(f"{where}: a table has one header, in its first line")
        if not isinstance(line, _Header):
            found.pop(line.cell, None)
            found[line.cell] = line
    return list(found.values())


def write(path: Path, rows: Iterable[Row]) -> None:
    """Write a table."""
    files.write_bytes(path, b"".join(map(_encoded, (_Header(), *rows))))


class TableFile:
    """An open table to which rows are appended; `rows` are its rows so far."""

    def __init__(self, file: IO[bytes], rows: list[Row]) -> None:
        self._file, self.rows = file, rows

    def add(self, row: Row) -> None:
        """Append a row; the file contains it when this returns."""
        self._file.write(_encoded(row))


@contextmanager
def appending(path: Path) -> Iterator[TableFile]:
    """Open and lock a table to continue it; drop a last line that an interrupt has torn."""
    with locked(path, str(path)):
        files.check_writable(path)
        content = files.read_bytes(path) if path.is_file() else b""
        whole = content.rfind(b"\n") + 1
        if whole:
            os.truncate(path, whole)
        else:
            write(path, ())
        rows = read(path)
        with files.open_to_append(path) as file:
            yield TableFile(file, rows)


def _encoded(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"
