"""Calibrate each fabric, then predict and run each cell: the accuracy table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from commsched import files
from commsched.lab.validate import table
from commsched.lab.validate.cells import (
    DENSE_SECONDS,
    SHARED_SECONDS,
    ValidationCell,
    fitting,
    make_plan,
    rotated,
)
from commsched.lab.validate.disturbance import PATIENCE, Calm
from commsched.lab.validate.fabrics import ON_THIS, FabricShape, measured_path
from commsched.lab.validate.session import FabricSession, Say, fabric_session
from commsched.lab.validate.table import ValidationRow
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.timeline import file as timeline_file
from commsched.timeline import measure
from commsched.timeline.compare import Comparison, compare

TABLE = "table.json"
WARM = 1  # warm-up steps, which are left out

Done = Callable[[ValidationRow], None]  # called with each finished row


@dataclass(frozen=True, kw_only=True)
class ValidationRequest:
    """Which cells are validated, and how."""

    fabrics: Sequence[str]
    nets: Sequence[str]
    families: Sequence[str]  # run for every net on every fabric
    shape: FabricShape
    others: bool = False  # run the other families, too, with one net per fabric
    scale: float = 1.0  # of bytes and seconds
    steps: int = 11  # including one warm-up step
    seconds: float = 30.0  # of calibration per fabric
    patience: float = PATIENCE  # s for repeating disturbed measurements

    @property
    def cells(self) -> list[ValidationCell]:
        """Return all cells, fabric by fabric and net by net."""
        cells = [
            ValidationCell(f, n, m) for f in self.fabrics for n in self.nets for m in self.families
        ]
        cells += rotated(self.fabrics, self.nets) if self.others else []
        return sorted(cells, key=lambda c: (self.fabrics.index(c.fabric), self.nets.index(c.net)))


def validate(wanted: ValidationRequest, folder: Path, say: Say, done: Done) -> list[ValidationRow]:
    """Return the rows of the table, in order; `folder` stores all files and finished rows.

    An interrupted validation resumes: a row is measured again only if its plan has changed.
    """
    path = folder / TABLE
    rows = {row.cell: row for row in table.read(path)} if path.exists() else {}
    calm = Calm(patience=wanted.patience)
    files.make_folder(folder)
    for name in wanted.fabrics:
        with fabric_session(name, wanted.shape, folder, wanted.seconds, say, calm) as session:
            for cell in wanted.cells:
                if cell.fabric == name:
                    rows[cell] = row = _row(cell, session, wanted, rows.get(cell))
                    table.write(path, rows.values())
                    done(row)
    return [rows[cell] for cell in wanted.cells]


def _row(
    cell: ValidationCell,
    session: FabricSession,
    wanted: ValidationRequest,
    old: ValidationRow | None,
) -> ValidationRow:
    """Predict and run the cell, unless its old row has the same plan."""
    machine = session.calibrated(cell.net)
    seconds = SHARED_SECONDS if cell.fabric in ON_THIS else DENSE_SECONDS
    scale = fitting(cell.net, machine, seconds * wanted.scale)
    plan = make_plan(cell, machine, scale)
    if old is not None and old.plan == plan.hash:
        return old
    predicted = simulate(plan, wanted.steps).timeline()
    timeline_file.write(session.folder / f"{cell.name}.predicted.json", predicted)
    measured, stolen = session.measured(plan, cell.name, wanted.steps)
    timeline_file.write(measured_path(session.folder / cell.name), measured)
    both = compare(predicted, measured, WARM)
    exchanges: dict[int, list[tuple[float, float]]] = {}  # launch -> its phases
    known = STRATEGIES[plan.strategy].operations(plan)
    for o in both.operations:
        if measure.is_communication(o.stream):
            phases = exchanges.setdefault(known[o.name].launch, [])
            phases.append((o.seconds.predicted, o.seconds.measured))
    iterations = measure.iteration_seconds(measured)[measure.settled(measured, WARM)]
    low, middle, high = np.quantile(iterations, (0.1, 0.5, 0.9)).tolist()
    return ValidationRow(
        fabric=cell.fabric,
        net=cell.net,
        family=cell.family,
        method=cell.method,
        ranks=machine.size,
        nbytes=4.0 * plan.net.numel,
        plan=plan.hash,
        predicted=both.iteration.predicted,
        measured=both.iteration.measured,
        spread=(high - low) / middle,
        stolen=stolen,
        collectives=tuple(tuple(np.sum(phases, axis=0).tolist()) for phases in exchanges.values()),
        phases=tuple(pair for phases in exchanges.values() for pair in phases),
        hidden=(_hidden(both, "predicted"), _hidden(both, "measured")),
    )


def _hidden(both: Comparison, side: str) -> float:
    """Return the share of the communication that compute hides."""
    hidden, exposed = getattr(both.hidden, side), getattr(both.exposed, side)
    return float(hidden / (hidden + exposed)) if hidden + exposed else 1.0
