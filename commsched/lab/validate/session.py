"""Calibrate a running fabric and measure plans on it, and repeat what other guests disturbed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from commsched import files
from commsched.lab.validate.disturbance import Calm
from commsched.lab.validate.fabrics import ON_THIS, FabricShape, ValidationFabric, fabric
from commsched.machine import file as machine_file
from commsched.machine.model import Machine
from commsched.plan.model import Plan
from commsched.timeline.model import Timeline

Say = Callable[[str], None]  # called with a sentence when something begins


@dataclass(frozen=True, kw_only=True)
class FabricSession:
    """A running fabric and the folder of its machines, plans and timelines."""

    name: str
    fabric: ValidationFabric
    folder: Path
    seconds: float  # of a calibration
    say: Say
    calm: Calm

    def calibrated(self, net: str) -> Machine:
        """Return the machine of this fabric for a net; calibrate if the folder has no file.

        Cores and memory of this machine are shared and drift: each net has its own calibration.
        """
        name = f"{net}.machine.json" if self.name in ON_THIS else "machine.json"
        path = self.folder / name

        def measured() -> Machine:
            self.say(f"calibrating {self.name}, {path.stem} ({self.seconds:g} s)")
            self.fabric.run("calibrate", "-o", str(path), "--seconds", str(self.seconds))
            return machine_file.read(path)

        if not path.exists():
            machine_file.write(path, self.calm(measured)[0])
        return machine_file.read(path)

    def measured(self, plan: Plan, name: str, steps: int) -> tuple[Timeline, float]:
        """Run a plan; return its timeline and the share of processor time that others took."""
        return self.calm(lambda: self.fabric.execute(plan, self.folder / name, steps))


@contextmanager
def fabric_session(
    name: str, shape: FabricShape, folder: Path, seconds: float, say: Say, calm: Calm
) -> Iterator[FabricSession]:
    """Start a fabric whose files are in a folder of its name, and stop it at the end."""
    files.make_folder(folder / name)
    with fabric(name, shape) as running:
        yield FabricSession(
            name=name, fabric=running, folder=folder / name, seconds=seconds, say=say, calm=calm
        )
