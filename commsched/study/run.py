"""The run of a study: cells are planned, and each finished row is written at once."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from commsched.coding.registry import CODECS
from commsched.exchange.registry import METHODS
from commsched.interrupts import on_interrupt
from commsched.machine.library import LIBRARIES
from commsched.planner.registry import PLANNERS
from commsched.planner.search.problem import BASELINES
from commsched.program.registry import STRATEGIES
from commsched.progress import progress
from commsched.schedule.registry import COLLECTIVES
from commsched.study.cells import NEAR, Cell, names
from commsched.study.pricing import FAILED, Row, prepare, row
from commsched.study.rows import PARQUET, appending, check_parquet, read, write_parquet
from commsched.text_table import table
from commsched.units import bits, seconds

TOGETHER = 16  # priced cells, of one machine or of several, that a process plans in a row


class Done(NamedTuple):
    """The result of a study."""

    rows: list[Row]  # of the cells, in their order
    there: int  # rows that the file had before
    seconds: float
    workers: int

    @property
    def made(self) -> int:
        """Count the rows that were made now."""
        return len(self.rows) - self.there

    @property
    def failed(self) -> int:
        """Count the cells without a plan."""
        return sum(one["status"] == FAILED for one in self.rows)

    def sentence(self) -> str:
        """Sum up the study in one sentence."""
        rate = f", {self.made / self.seconds / self.workers:.3g} per second and process"
        return (
            f"{len(self.rows)} rows: {self.there} were there, {self.made} made"
            + (f" in {self.seconds:.3g} s{rate}" if self.made else "")
            + (f"; {self.failed} have no plan, see column sentence" if self.failed else "")
        )


def run(
    cells: Sequence[Cell], path: Path, executor: Executor | None = None, workers: int = 1
) -> Done:
    """Make the rows that a file lacks, by an executor or here; Ctrl-C keeps all finished rows.

    Rows for a Parquet file are first appended to a CSV file in the same folder.
    """
    if path.suffix.lower() == PARQUET:
        check_parquet()
        done = run(cells, path.with_suffix(".csv"), executor, workers)
        write_parquet(path, read(path.with_suffix(".csv")))
        return done
    for plug_ins in (PLANNERS, STRATEGIES, METHODS, CODECS, COLLECTIVES, LIBRARIES):
        len(plug_ins)  # imports them before processes and the clock start
    wanted = {cell.digest: cell for cell in cells}
    named = names(cells)
    with appending(path) as file:
        found = {str(one["cell"]): one for one in file.there}
        there = len(found.keys() & wanted.keys())
        left = [cell for digest, cell in wanted.items() if digest not in found]
        begin = time.monotonic()
        with progress(len(left), "row", "study") as bar, _interrupts() as check:
            try:
                for one in _rows(left, executor, check):
                    cell = wanted[one["cell"]]
                    one |= {kind: named[kind, getattr(cell, kind)] for kind in ("net", "machine")}
                    found[one["cell"]] = file.add(one)
                    bar.update()
            except KeyboardInterrupt:  # perhaps between a row's writing and its noting
                there = len({str(one["cell"]) for one in read(path)} & wanted.keys())
                told = f"interrupted; {path} has {there} of {len(wanted)} rows, and can go on"
                raise KeyboardInterrupt(told) from None
    made = [found[digest] for digest in wanted]
    return Done(made, there, max(time.monotonic() - begin, 1e-9), workers)


def table_of(rows: Sequence[Row]) -> str:
    """Return the main columns as text."""
    header = ("net", "machine", "ranks", "port", "planner", "allow", "step", "exposed", "methods")
    lines = [
        (
            one["net"],
            one["machine"],
            "" if one["ranks"] is None else str(one["ranks"]),
            "" if one["port_bits_per_second"] is None else bits(one["port_bits_per_second"] / 8),
            one["planner"],
            one["allow"],
            "" if one["step_seconds"] is None else seconds(one["step_seconds"]),
            "" if one["exposed_seconds"] is None else seconds(one["exposed_seconds"]),
            one["methods"] or one["sentence"],
        )
        for one in rows
    ]
    return table(header, lines, (2, 3, 6, 7))


def planned(cells: Sequence[Cell]) -> list[Row]:
    """Return the rows of some cells, in another process."""
    prepare(cells)
    return [row(cell) for cell in cells]


def _rows(
    cells: Sequence[Cell], executor: Executor | None, check: Callable[[], None]
) -> Iterator[Row]:
    """Yield each finished row; cells are ordered by machine, and then by net."""
    near = sorted(cells, key=lambda cell: (cell.place, _takes_long(cell), cell.load))
    if executor is None:
        places = [list(group) for _, group in groupby(near, lambda cell: cell.place)]
        for first in range(0, len(places), NEAR):
            together = [cell for group in places[first : first + NEAR] for cell in group]
            prepare(together)
            for cell in together:
                made = row(cell)
                check()
                yield made
        return
    futures = [executor.submit(planned, some) for some in _tasks(near)]
    for future in as_completed(futures):
        check()
        yield from future.result()


def _tasks(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cut cells into tasks: one per cell that is searched or simulated, short lists of others."""
    few: list[Cell] = []  # of some machines
    for (_, long), group in groupby(cells, lambda c: (c.place, _takes_long(c))):
        some, size = list(group), 1 if long else TOGETHER
        if not long and len(some) <= TOGETHER:
            if len(few) + len(some) > TOGETHER:
                yield few
                few = []
            few += some
            continue
        yield from (some[k : k + size] for k in range(0, len(some), size))
    if few:
        yield few


def _takes_long(cell: Cell) -> bool:
    return cell.simulate or cell.planner not in BASELINES


@contextmanager
def _interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises a Ctrl-C again if a search took it as the search's end."""
    came = False

    def interrupt() -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    with on_interrupt(interrupt):
        yield check
