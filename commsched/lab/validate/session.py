"""A session on a running bed: calibration, measured plans, and repetition of disturbed runs."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commsched import files
from commsched.errors import CommschedError
from commsched.lab.validate import cells
from commsched.lab.validate.cells import BATCH, TRAIN, ValidationCell
from commsched.lab.validate.disturbance import Calm, Disturbance
from commsched.lab.validate.fabrics import RUN, SHARED, Bed, ValidationFabric, measured_path
from commsched.machine import file as machine_file
from commsched.machine.model import Machine
from commsched.net import file as net_file
from commsched.net.graph import Net
from commsched.plan.model import Plan
from commsched.timeline import file as timeline_file
from commsched.timeline.model import Timeline

Say = Callable[[str], None]  # called with a sentence when a stage begins
Measured = tuple[Timeline, Disturbance]  # a run, and its disturbance by other guests
MACHINE, MEMORY = "machine.json", "memory.json"


@dataclass(frozen=True, kw_only=True)
class BedSession:
    """A running bed and the folder of its machine, profiles, plans and timelines."""

    bed: str
    fabric: ValidationFabric
    folder: Path
    seconds: float  # of a calibration
    say: Say
    calm: Calm

    def calibrated(self) -> Machine:
        """Return the machine of this bed; calibrate if the folder has no file."""
        path, tried = self.folder / MACHINE, self.folder / f"tried-{MACHINE}"

        def measured() -> Machine:
            self.say(f"{self.bed}: calibrating ({self.seconds:g} s)")
            self.fabric.run("calibrate", "-o", str(tried), "--seconds", str(self.seconds))
            return machine_file.read(tried)

        if not path.exists():
            usual = self.calm.copying() if self.copies else None
            machine_file.write(path, self.calm(measured, usual)[0])
            if usual:
                files.write(self.folder / MEMORY, {"copy": usual})
            tried.unlink(missing_ok=True)
        return machine_file.read(path)

    @property
    def copies(self) -> bool:
        """Tell whether exchanges copy memory, so that the speed of memory matters."""
        return Bed.of(self.bed).fabric == SHARED

    @property
    def usual(self) -> float | None:
        """Return the s of a memory copy at the calibration; None: it does not matter."""
        path = self.folder / MEMORY
        if not (self.copies and path.exists()):
            return None
        return float(files.parse(files.read_text(path), str(path))["copy"])

    def net(self, cell: ValidationCell, machine: Machine) -> Net:
        """Return the net of a cell: scaled to the bed, or profiled by all ranks at once."""
        if cell.compute != TRAIN:
            return cells.fitting(cell, machine)
        path = self.folder / f"{cell.net}.net.json"
        if not path.exists():
            self.say(f"{self.bed}: profiling {cell.net}")
            profile = "profile", cell.net, "--batch", str(BATCH), "-o", str(path)
            self.calm(lambda: self.fabric.run(*profile), self.usual)
        return net_file.read(path)

    def measured(self, plan: Plan, cell: ValidationCell, stem: str, steps: int) -> Measured:
        """Run a plan, or train by it; the files that stay are those of the returned run."""
        batch = str(BATCH * plan.machine.size)
        train = ("train", "--net", cell.net, "--batch", batch, "--json", "--plan")
        command = train if cell.compute == TRAIN else RUN
        runs = list[Timeline]()

        def run() -> Timeline:
            runs.append(self.fabric.execute(plan, self.folder / stem, steps, command))
            return runs[-1]

        timeline, disturbance = self.calm(run, self.usual)
        if timeline is not runs[-1]:
            timeline_file.write(measured_path(self.folder / stem), timeline)
        return timeline, disturbance


def begin(folder: Path, settings: Mapping[str, float]) -> None:
    """Record in a folder the settings of its results; raise an error if it has other settings."""
    path = folder / "settings.json"
    if not path.exists():
        files.make_folder(folder)
        files.write(path, dict(settings))
    elif files.parse(files.read_text(path), str(path)) != settings:
        raise CommschedError(
            f"{folder} was begun with other settings ({path.name}): give -o another folder"
        )


def identity(folder: Path) -> str:
    """Return a hash of the calibration in a bed's folder; "" without a calibration."""
    path = folder / MACHINE
    return hashlib.sha256(files.read_bytes(path)).hexdigest()[:12] if path.exists() else ""


@contextmanager
def bed_session(
    bed: str, folder: Path, seconds: float, say: Say, calm: Calm
) -> Iterator[BedSession]:
    """Start a bed whose files are in a folder of its name, and stop it at the end."""
    files.make_folder(folder / bed)
    with Bed.of(bed).running() as running:
        yield BedSession(
            bed=bed, fabric=running, folder=folder / bed, seconds=seconds, say=say, calm=calm
        )
