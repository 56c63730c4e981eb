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
from commsched.lab.validate.fabrics import ON_THIS, FabricShape, ValidationFabric, fabric
from commsched.lab.validate.table import ValidationRow
from commsched.machine import file as machine_file
from commsched.machine.model import Machine
from commsched.plan import file as plan_file
from commsched.program.registry import STRATEGIES
from commsched.simulate.engine import simulate
from commsched.timeline import file as timeline_file
from commsched.timeline import measure
from commsched.timeline.compare import Comparison, compare

TABLE = "table.json"
WARM = 1  # steps that are dropped

# Called with a sentence when something begins, and with a row when it is done.
Say = Callable[[str], None]
Done = Callable[[ValidationRow], None]


@dataclass(frozen=True, kw_only=True)
class ValidationRequest:
    """Which cells are validated, and how."""

    fabrics: Sequence[str]
    nets: Sequence[str]
    families: Sequence[str]  # that meet every net on every fabric
    shape: FabricShape
    others: bool = False  # the other families, too, with one net per fabric
    scale: float = 1.0  # of bytes and seconds
    steps: int = 11  # of which the first is dropped
    seconds: float = 30.0  # of calibration per fabric
    patience: float = PATIENCE  # s for all repetitions of what was disturbed

    @property
    def cells(self) -> list[ValidationCell]:
        """All cells, fabric by fabric and net by net."""
        found = [
            ValidationCell(f, n, m) for f in self.fabrics for n in self.nets for m in self.families
        ]
        found += rotated(self.fabrics, self.nets) if self.others else []
        return sorted(found, key=lambda c: (self.fabrics.index(c.fabric), self.nets.index(c.net)))


def validate(wanted: ValidationRequest, folder: Path, say: Say, done: Done) -> list[ValidationRow]:
    """The table's rows, in order; `folder` keeps machines, plans, timelines and finished rows.

    A row whose plan is still the same is not run again, so that an interrupted validation goes on.
    """
    path = folder / TABLE
    rows = {row.cell: row for row in table.read(path)} if path.exists() else {}
    calm = Calm(patience=wanted.patience)
    for name in wanted.fabrics:
        place = folder / name
        files.make_folder(place)
        with fabric(name, wanted.shape) as found:
            for cell in wanted.cells:
                if cell.fabric == name:
                    machine = calibrated(found, name, cell.net, place, wanted.seconds, say, calm)
                    row = _row(cell, machine, found, place, wanted, rows.get(cell), calm)
                    rows[cell] = row
                    table.write(path, rows.values())
                    done(row)
    return [rows[cell] for cell in wanted.cells]


def calibrated(
    found: ValidationFabric, name: str, net: str, place: Path, seconds: float, say: Say, calm: Calm
) -> Machine:
    """The machine that a fabric is for a net; measured for so many seconds where `place` has none.

    Cores and memory are shared with who knows whom, and drift: they are measured for each net.
    """
    path = place / (f"{net}.machine.json" if name in ON_THIS else "machine.json")

    def measured() -> Machine:
        say(f"calibrating {name}, {path.stem} ({seconds:g} s)")
        found.run("calibrate", "-o", str(path), "--seconds", str(seconds))
        return machine_file.read(path)

    if not path.exists():
        machine_file.write(path, calm(measured)[0])
    return machine_file.read(path)


def _row(
    cell: ValidationCell,
    machine: Machine,
    found: ValidationFabric,
    place: Path,
    wanted: ValidationRequest,
    old: ValidationRow | None,
    calm: Calm,
) -> ValidationRow:
    """Predict the cell, then run it; the row that is there already where it is of this plan."""
    seconds = SHARED_SECONDS if cell.fabric in ON_THIS else DENSE_SECONDS
    scale = fitting(cell.net, machine, seconds * wanted.scale)
    plan = make_plan(cell, machine, scale)
    if old is not None and old.plan == plan.hash:
        return old
    path = place / f"{cell.name}.plan.json"
    plan_file.write(path, plan)
    predicted = simulate(plan, wanted.steps).timeline()
    timeline_file.write(place / f"{cell.name}.predicted.json", predicted)
    output = place / f"{cell.name}.measured.json"
    measured, stolen = calm(lambda: found.execute(plan, path, output, wanted.steps))
    timeline_file.write(output, measured)
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
    """Share of the communication that passes under compute."""
    hidden, exposed = getattr(both.hidden, side), getattr(both.exposed, side)
    return float(hidden / (hidden + exposed)) if hidden + exposed else 1.0
