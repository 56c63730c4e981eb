"""Where plans are validated: this machine's shared memory or GPU, or hosts on a testbed."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from commsched.errors import CommschedError
from commsched.kernels.device import gpus
from commsched.lab.testbed.bed import Completed, Testbed
from commsched.lab.testbed.mpi import Launcher
from commsched.lab.testbed.proof import crossing, missing
from commsched.lab.testbed.spec import Spec
from commsched.plan.model import Plan
from commsched.run.job import launcher as found
from commsched.run.job import start as job
from commsched.timeline import file as timeline_file
from commsched.timeline.model import Timeline

SHARED = "shared"
# Name -> rates of the ports; hosts and lanes per host are the user's.
RATES = {
    "100mbit": ("100mbit",),
    "400mbit": ("400mbit",),
    "1gbit": ("1gbit",),
    "slow": ("400mbit", "h1=100mbit"),  # one host
}
FABRICS = (SHARED, *RATES)
GPU = "gpu"  # ranks of this machine that share its GPUs; only where it is asked for
ON_THIS = (SHARED, GPU)
LIMIT = 300.0  # s that one job may last


class FabricShape(NamedTuple):
    """How many hosts a testbed has, and ranks on each."""

    hosts: int
    lanes: int

    @property
    def ranks(self) -> int:
        """On all hosts; in shared memory as many."""
        return self.hosts * self.lanes


class ValidationFabric(Protocol):
    """A place that runs the ranks of a job."""

    def run(self, *words: str) -> None:
        """Run a commsched command on all ranks."""

    def execute(self, plan: Plan, path: Path, output: Path, steps: int) -> Timeline:
        """Run a plan and read its timeline; an error where bytes went around the links."""


class SharedMemoryFabric:
    """Ranks on this machine, with arrays on a device."""

    def __init__(self, shape: FabricShape, device: str = "cpu") -> None:
        self._ranks = shape.ranks
        self._device = () if device == "cpu" else ("--device", device)

    def run(self, *words: str) -> None:
        job.commsched(self._ranks, (*words, *self._device), LIMIT, quiet=True)

    def execute(self, plan: Plan, path: Path, output: Path, steps: int) -> Timeline:
        self.run(*_run(path, output, steps))
        return timeline_file.read(output)


class ShapedFabric:
    """Ranks on a testbed that is up."""

    def __init__(self, bed: Testbed) -> None:
        self._bed = bed
        self._launcher = launcher()

    def run(self, *words: str) -> None:
        self._completed(words)

    def execute(self, plan: Plan, path: Path, output: Path, steps: int) -> Timeline:
        done = self._completed(_run(path, output, steps))
        measured = timeline_file.read(output)
        spec = self._bed.spec
        around = missing(crossing(plan, measured, spec), done.counters, spec.names)
        if around:
            raise CommschedError(around[0])
        return measured

    def _completed(self, words: Sequence[str]) -> Completed:
        spec = self._bed.spec
        argv = (*job.COMMAND, *words)
        ranks = spec.hosts * spec.lanes
        done = self._bed.run(
            argv, ranks=ranks, launcher=self._launcher, timeout=LIMIT, variables=variables()
        )
        if done.status:
            tail = "".join(f"\n{line}" for line in done.stderr.splitlines()[-job.LAST :])
            raise CommschedError(f"'{' '.join(argv)}' ended with status {done.status}{tail}")
        return done


def _run(path: Path, output: Path, steps: int) -> tuple[str, ...]:
    return ("run", str(path), "-o", str(output), "--steps", str(steps))


@contextmanager
def fabric(name: str, shape: FabricShape) -> Iterator[ValidationFabric]:
    """A fabric by its name in FABRICS; a testbed is taken down at the end."""
    if name == SHARED:
        yield SharedMemoryFabric(shape)
    elif name == GPU:
        yield SharedMemoryFabric(shape, "cuda")
    else:
        with Testbed.up(shape.hosts, shape.lanes, RATES[name]) as bed:
            yield ShapedFabric(bed)


def checked(name: str, shape: FabricShape) -> None:
    """Refuse a fabric that cannot be here, on hosts of this shape."""
    if name == GPU:
        gpus()
    elif name not in ON_THIS:
        Spec.of(shape.hosts, shape.lanes, RATES[name])


def launcher() -> Launcher:
    """The mpiexec of the MPI that mpi4py loads, for a testbed."""
    path = found.find_mpiexec()
    family = found.family(found.library())
    assert family is not None  # its mpiexec was found by it
    return Launcher(family=family, command=(path,), variables=found.environment())


def variables() -> dict[str, str]:
    """Ranks find this `commsched` and this Python, also where no environment is activated."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {"PATH": os.pathsep.join(folders)}
