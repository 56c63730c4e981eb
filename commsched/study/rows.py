"""The file of a study: a CSV table to which each finished row is appended."""

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import IO, Any

from commsched import files
from commsched.errors import CommschedError
from commsched.run.job.lock import locked
from commsched.study.pricing import COLUMNS, Row

PARQUET = ".parquet"
OTHER = "not a table of this version's `commsched sweep`; give another file"
COUNTS = frozenset(("nodes", "ranks", "batches", "launches"))
NUMBERS = frozenset(name for name in COLUMNS if "_seconds" in name or "_bytes" in name) | {
    "scale",
    "density",
    "port_bits_per_second",
}


class RowFile:
    """The rows of a study in a file; `there`: the rows that the file already had."""

    def __init__(self, path: Path, file: IO[bytes], there: list[Row]) -> None:
        self.path, self._file, self.there = path, file, there

    def add(self, row: Row) -> Row:
        """Append a row to the file; return the row as it would be read from the file."""
        cells = [str(row[name]) for name in COLUMNS]
        found = _row(cells, str(self.path))
        self._file.write(_line(cells))
        return found


@contextmanager
def appending(path: Path) -> Iterator[RowFile]:
    """Open a study's file, locked, to continue the study; drop a row torn by an interrupt."""
    with locked(path, str(path)):
        there = _whole(path)
        with files.open_to_append(path) as file:
            if there is None:
                file.write(_line(COLUMNS))
            yield RowFile(path, file, there or [])


def read(path: str | Path) -> list[Row]:
    """Read the table of a study; missing numbers are None."""
    if Path(path).suffix.lower() == PARQUET:
        return _read_parquet(path)
    return _parsed(files.read_text(path), path)


def _parsed(text: str, path: str | Path) -> list[Row]:
    """Return the rows of a table, but not a last line that lacks its end and some cells."""
    try:
        table = list(csv.reader(io.StringIO(text)))
    except csv.Error as error:
        raise CommschedError(f"{path}: not a table: {error}") from None
    if not table or tuple(table[0]) != COLUMNS:
        raise CommschedError(f"{path}: {OTHER}")
    if not text.endswith("\n") and len(table[-1]) < len(COLUMNS):
        del table[-1]
    for number, cells in enumerate(table[1:], 2):
        if len(cells) != len(COLUMNS):
            raise CommschedError(
                f"{path}: line {number} has {len(cells)} cells, and {len(COLUMNS)} are expected"
            )
    return [_row(cells, f"{path}: line {number}") for number, cells in enumerate(table[1:], 2)]


def _row(cells: Sequence[str], where: str) -> Row:
    return {name: _value(name, cell, where) for name, cell in zip(COLUMNS, cells, strict=True)}


def _value(name: str, cell: str, where: str) -> str | float | None:
    if name not in NUMBERS | COUNTS:
        return cell
    number, kind = (float, "finite") if name in NUMBERS else (int, "whole")
    try:
        found = number(cell) if cell else None
        if found is None or isfinite(found):
            return found
    except (ValueError, OverflowError):
        pass
    raise CommschedError(f"{where}: {name} must be a {kind} number, got {cell!r}")


def _whole(path: Path) -> list[Row] | None:
    """Return the rows of a file, whose torn last line is cut off; None if it has no header."""
    files.check_writable(path)
    if not path.is_file():
        return None
    text = files.read_text(path)
    whole = text[: text.rfind("\n") + 1]
    torn = not whole and _line(COLUMNS).decode().startswith(text)
    rows = None if torn else _parsed(whole, path)  # refuses a file that is no table
    if whole != text:
        os.truncate(path, len(whole.encode()))
    return rows


def _line(cells: Sequence[Any]) -> bytes:
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerow(cells)
    return made.getvalue().encode()


def check_parquet() -> None:
    """Refuse a Parquet file where nothing can write one."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise CommschedError(
            "Parquet files need pyarrow: pip install pyarrow, or give a .csv file"
        ) from None


def write_parquet(path: Path, rows: Iterable[Row]) -> None:
    """Write rows as a Parquet file."""
    import pyarrow
    import pyarrow.parquet

    rows = list(rows)
    numbers = dict.fromkeys(NUMBERS, pyarrow.float64()) | dict.fromkeys(COUNTS, pyarrow.int64())
    kinds = [(name, numbers.get(name, pyarrow.string())) for name in COLUMNS]
    table = pyarrow.Table.from_pylist(rows, schema=pyarrow.schema(kinds))
    with files.writing(path) as file:
        pyarrow.parquet.write_table(table, file)


def _read_parquet(path: str | Path) -> list[Row]:
    """Read a file of `write_parquet`."""
    content = files.read_bytes(path)
    check_parquet()
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(pyarrow.BufferReader(content))
    except pyarrow.ArrowException as error:
        raise CommschedError(f"{path}: not a Parquet file: {error}") from None
    if tuple(table.column_names) != COLUMNS:
        raise CommschedError(f"{path}: {OTHER}")
    found: list[Row] = table.to_pylist()
    return found
