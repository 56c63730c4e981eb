"""The fabrics for validation: this machine's shared memory or GPUs, or hosts on a testbed."""

import os
import re
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
from commsched.machine.model import Group
from commsched.plan import file as plan_file
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
GPU = "gpu"  # ranks that share the GPUs of this machine; never a default
ON_THIS = (SHARED, GPU)
LIMIT = 300.0  # s, the longest job
RUN = ("run",)


class Bed(NamedTuple):
    """A fabric and its ranks, written `2x1-400mbit`: hosts, ranks on each of them, network."""

    fabric: str
    hosts: int
    lanes: int  # ranks on each host

    @classmethod
    def of(cls, text: str) -> "Bed":
        """Read a bed; reject one that this machine cannot have."""
        found = re.fullmatch(r"([0-9]{1,3})x([0-9]{1,3})-(.+)", text, re.ASCII)
        if found is None or found[3] not in (*FABRICS, GPU):
            raise CommschedError(
                f"bed {text!r}: expected HOSTSxRANKS-NETWORK such as 2x1-400mbit, with network"
                f" {', '.join(FABRICS)} or {GPU}"
            )
        bed = cls(found[3], int(found[1]), int(found[2]))
        if bed.ranks < 2:
            raise CommschedError(f"bed {text!r}: at least 2 ranks are needed")
        if bed.fabric in ON_THIS and bed.hosts > 1:
            raise CommschedError(f"bed {text!r}: {bed.fabric} is on one host; use 1x{bed.ranks}")
        if bed.fabric == GPU:
            gpus()
        elif bed.fabric not in ON_THIS:
            Spec.of(bed.hosts, bed.lanes, RATES[bed.fabric])
        return bed

    @property
    def ranks(self) -> int:
        """Return the ranks on all hosts, or in shared memory."""
        return self.hosts * self.lanes

    @property
    def group(self) -> Group:
        """Return all ranks and their hosts."""
        ranks = tuple(range(self.ranks))
        return Group(ranks=ranks, nodes=tuple(r // self.lanes for r in ranks))

    @contextmanager
    def running(self) -> Iterator["ValidationFabric"]:
        """Yield the fabric that runs the ranks; remove its testbed at the end."""
        if self.fabric in ON_THIS:
            yield SharedMemoryFabric(self.ranks, "cuda" if self.fabric == GPU else "cpu")
        else:
            with Testbed.up(self.hosts, self.lanes, RATES[self.fabric]) as bed:
                yield ShapedFabric(bed)


class ValidationFabric(Protocol):
    """The interface of a fabric: it runs the ranks of a job."""

    def run(self, *words: str) -> None:
        """Run a commsched command on all ranks."""

    def execute(self, plan: Plan, stem: Path, steps: int, command: Sequence[str] = RUN) -> Timeline:
        """Run a plan and return its timeline; reject a run whose bytes bypassed the links.

        The files are STEM.plan.json and STEM.measured.json; `command` is followed by the plan's.
        """


class SharedMemoryFabric:
    """Ranks on this machine, with arrays on a device."""

    def __init__(self, ranks: int, device: str = "cpu") -> None:
        self._ranks = ranks
        self._device = () if device == "cpu" else ("--device", device)

    def run(self, *words: str) -> None:
        job.commsched(self._ranks, (*words, *self._device), LIMIT, quiet=True)

    def execute(self, plan: Plan, stem: Path, steps: int, command: Sequence[str] = RUN) -> Timeline:
        self.run(*_run(plan, stem, steps, command))
        return timeline_file.read(measured_path(stem))


class ShapedFabric:
    """Ranks on a testbed that is up."""

    def __init__(self, bed: Testbed, limit: float = LIMIT) -> None:
        self._bed, self._limit = bed, limit
        self._launcher = launcher()

    def run(self, *words: str) -> None:
        self._completed(*job.COMMAND, *words)

    def python(self, module: str, *words: str) -> None:
        """Run a module of Python on all ranks."""
        self._completed(sys.executable, "-m", module, *words)

    def execute(self, plan: Plan, stem: Path, steps: int, command: Sequence[str] = RUN) -> Timeline:
        done = self._completed(*job.COMMAND, *_run(plan, stem, steps, command))
        measured = timeline_file.read(measured_path(stem))
        spec = self._bed.spec
        around = missing(crossing(plan, measured, spec), done.counters, spec.names)
        if around:
            raise CommschedError(around[0])
        return measured

    def _completed(self, *argv: str) -> Completed:
        bed, ranks = self._bed, self._bed.spec.ranks
        done = bed.run(
            argv, ranks=ranks, launcher=self._launcher, timeout=self._limit, variables=variables()
        )
        if done.status:
            tail = "".join(f"\n{line}" for line in done.stderr.splitlines()[-job.LAST :])
            raise CommschedError(f"'{' '.join(argv)}' ended with status {done.status}{tail}")
        return done


def plan_path(stem: Path) -> Path:
    """Return the plan file of a run."""
    return stem.with_name(f"{stem.name}.plan.json")


def measured_path(stem: Path) -> Path:
    """Return the timeline of a run."""
    return stem.with_name(f"{stem.name}.measured.json")


def _run(plan: Plan, stem: Path, steps: int, command: Sequence[str]) -> tuple[str, ...]:
    """Write the plan and return the words of the command that runs it."""
    plan_file.write(plan_path(stem), plan)
    return *command, str(plan_path(stem)), "-o", str(measured_path(stem)), "--steps", str(steps)


def launcher() -> Launcher:
    """Return the mpiexec of the MPI that mpi4py loads, for a testbed."""
    path = found.find_mpiexec()
    family = found.family(found.library())
    assert family is not None  # a known family has an mpiexec
    return Launcher(family=family, command=(path,), variables=found.environment())


def variables() -> dict[str, str]:
    """Return the PATH on which ranks find this `commsched` and this Python."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {"PATH": os.pathsep.join(folders)}
