"""The validation: calibrate each bed, then predict and run each cell of the accuracy table."""

import math
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commsched.errors import CommschedError
from commsched.lab.validate.cells import ValidationCell, make_plan
from commsched.lab.validate.decisions import measured_plans
from commsched.lab.validate.disturbance import PATIENCE, Calm
from commsched.lab.validate.session import BedSession, Say, bed_session, begin, identity
from commsched.lab.validate.table import (
    DecisionRow,
    FailedRow,
    Pair,
    Row,
    TableFile,
    ValidationRow,
    appending,
)
from commsched.plan.model import Plan
from commsched.planner.search.timing import iteration
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.timeline import measure
from commsched.timeline.attribute import Why
from commsched.timeline.breakdown import CAUSES
from commsched.timeline.compare import Comparison, compare

TABLE = "table.jsonl"
WARM = 1  # warm-up steps, which are left out
LASTS = 2.0  # least s of a run as predicted: cores change their speed many times a second
TOLD = 0.005  # least share of the iteration of a reported part of an error
MOST_TOLD = 6

Done = Callable[[Row, float], None]  # called with each finished row and the seconds that it took


@dataclass(frozen=True, kw_only=True)
class ValidationRequest:
    """The cells to validate, part by part, and the settings."""

    parts: Sequence[Sequence[ValidationCell]]
    steps: int = 11  # at least, including one warm-up step
    seconds: float = 20.0  # of a calibration
    patience: float = PATIENCE  # s for repeating disturbed measurements

    @property
    def cells(self) -> list[ValidationCell]:
        """Return all cells."""
        return [cell for part in self.parts for cell in part]


SETTINGS = ("steps", "seconds")  # that every row depends on


def validate(wanted: ValidationRequest, folder: Path, say: Say, done: Done) -> list[Row]:
    """Return the rows of the wanted cells; `folder` stores all files and finished rows.

    Each part calibrates its beds anew, so that machine and cells are measured within minutes. A
    further call with the same SETTINGS continues an interrupted validation: it runs a cell again
    only if the cell failed, or if its bed has been calibrated again.
    """
    begin(folder, {name: getattr(wanted, name) for name in SETTINGS})
    calm = Calm(patience=wanted.patience)
    with appending(folder / TABLE) as file:
        known = {row.cell: row for row in file.rows}
        for number, part in enumerate(wanted.parts, 1):
            place = folder / f"part-{number}"
            for bed in dict.fromkeys(cell.bed for cell in part):
                here = [cell for cell in part if cell.bed == bed]
                now = identity(place / bed)
                left = [cell for cell in here if not _finished(known.get(cell), now)]
                if left:
                    with bed_session(bed, place, wanted.seconds, say, calm) as session:
                        known |= _rows(left, session, wanted, file, done)
    return [known[cell] for cell in wanted.cells if cell in known]


def _finished(row: Row | None, machine: str) -> bool:
    return row is not None and not isinstance(row, FailedRow) and row.machine == machine


def _rows(
    cells: Sequence[ValidationCell],
    session: BedSession,
    wanted: ValidationRequest,
    file: TableFile,
    done: Done,
) -> dict[ValidationCell, Row]:
    """Measure cells on a running bed; a failed cell does not stop the others."""
    session.calibrated()
    found: dict[ValidationCell, Row] = {}
    for cell in cells:
        begun = time.monotonic()
        about: dict[str, Any] = cell._asdict() | {
            "machine": identity(session.folder),
            "cores": len(os.sched_getaffinity(0)),
        }
        try:
            row = _row(cell, session, wanted, about)
        except CommschedError as error:
            row = FailedRow(**about, why=str(error))
        except Exception as error:  # a bug in one cell must not stop the others
            traceback.print_exc()
            row = FailedRow(**about, why=f"{type(error).__name__}: {error}")
        file.add(row)
        found[cell] = row
        done(row, time.monotonic() - begun)
    return found


def _row(
    cell: ValidationCell,
    session: BedSession,
    wanted: ValidationRequest,
    about: Mapping[str, Any],
) -> Row:
    """Predict a cell and run it."""
    machine = session.calibrated()
    net = session.net(cell, machine)
    if not cell.method:
        return DecisionRow(**about, plans=measured_plans(cell, net, machine, session, wanted.steps))
    plan = make_plan(cell, net, machine)
    steps = max(wanted.steps, math.ceil(LASTS / iteration(plan)))
    predicted = simulate(plan, steps).timeline()
    measured, disturbance = session.measured(plan, cell, cell.stem, steps)
    both = compare(predicted, measured, WARM)
    iterations = measure.iteration_seconds(measured)[measure.settled(measured, WARM)]
    low, middle, high = np.quantile(iterations, (0.1, 0.5, 0.9)).tolist()
    sure = both.interval
    return ValidationRow(
        **about,
        plan=plan.hash,
        nbytes=4.0 * plan.net.numel,
        predicted=both.iteration.predicted,
        measured=both.iteration.measured,
        spread=(high - low) / middle,
        stolen=disturbance.stolen,
        memory=disturbance.memory,
        exchanges=_exchanges(plan, both),
        interval=None if sure is None else (sure.low, sure.high),
        why=() if both.why is None else _parts(plan, both.why, both.iteration.measured),
    )


def _exchanges(plan: Plan, both: Comparison) -> tuple[Pair, ...]:
    """Return predicted and measured seconds of each bucket's exchange, summed over phases."""
    known, found = STRATEGIES[plan.strategy].operations(plan), dict[int, Pair]()
    for o in both.operations:
        if measure.is_communication(o.stream):
            launch = known[o.name].launch
            predicted, measured = found.get(launch, (0.0, 0.0))
            found[launch] = predicted + o.seconds.predicted, measured + o.seconds.measured
    return tuple(found.values())


def _parts(plan: Plan, why: Why, iteration: float) -> tuple[tuple[str, str, float], ...]:
    """Return the largest parts of an error, by kind of operation and cause."""
    known, found = STRATEGIES[plan.strategy].operations(plan), dict[tuple[str, str], float]()
    for name, values in zip(why.names, why.values.tolist(), strict=True):
        what = f"{known[name].kind} on {known[name].stream}" if name in known else name
        for cause, seconds in zip(CAUSES, values, strict=True):
            found[what, cause] = found.get((what, cause), 0.0) + seconds / iteration
    largest = sorted(found.items(), key=lambda item: -abs(item[1]))[:MOST_TOLD]
    return tuple((*key, share) for key, share in largest if abs(share) >= TOLD)
