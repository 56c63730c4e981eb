"""A running testbed: run MPI jobs on it, read the traffic of its ports, remove it."""

import itertools
import math
import os
import re
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from commsched import files
from commsched.errors import CommschedError
from commsched.lab.testbed import mpi, network, system
from commsched.lab.testbed.hosts import Files, home
from commsched.lab.testbed.mpi import Launcher
from commsched.lab.testbed.network import Traffic
from commsched.lab.testbed.spec import Spec
from commsched.run.job.lock import locked

NAME = "main"
NUMBERS = itertools.count()  # of temporary testbeds of this process
LOOK = 2.0  # s between looks at the ports during a job; a look takes 2 ms
WAIT = 60.0  # s for another process that builds or removes the same testbed


class Completed(NamedTuple):
    """How a job ended."""

    status: int  # of mpiexec; 128 + signal where one ended it
    stdout: str  # of all ranks; empty where it was not captured
    stderr: str
    counters: tuple[Traffic, ...]  # traffic of each host's port during the job
    seconds: float


class Testbed:
    """Running hosts; a with block removes them at its end."""

    __test__ = False  # not a test case of pytest

    def __init__(self, name: str, spec: Spec) -> None:
        self.name, self.spec = name, spec
        self._files = Files(name)

    @classmethod
    def up(
        cls,
        hosts: int = 4,
        lanes: int = 2,
        rates: Sequence[str] = (),
        name: str | None = None,
        replace: bool = False,
    ) -> "Testbed":
        """Create a testbed, or reuse an equal one of this name; `replace` another one that is up.

        A testbed without a name is temporary: `sweep` removes it if this process dies.
        """
        spec = Spec.of(hosts, lanes, rates)
        name = checked(name or f"run-{os.getpid()}-{next(NUMBERS)}")
        system.require()
        sweep()
        with _changing(name):
            there = network.read(name)
            if there is not None and there != spec and not replace:
                raise CommschedError(
                    f"testbed {name!r} is up as {there}; add --replace, or give another --name"
                )
            if there != spec:
                with running(name):
                    network.remove(name)
                    _build(name, spec)
        return cls(name, spec)

    @classmethod
    def find(cls, name: str = NAME) -> "Testbed":
        """Return the running testbed of this name."""
        system.require()
        spec = network.read(checked(name))
        if spec is None:
            state = "is not whole" if name in network.found() else "is not up"
            raise CommschedError(f"testbed {name!r} {state}; commsched testbed up")
        return cls(name, spec)

    def __enter__(self) -> "Testbed":
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    def down(self) -> None:
        """Remove the testbed and end its processes."""
        down(self.name)

    def counters(self) -> tuple[Traffic, ...]:
        """Return the traffic of each host's port since the testbed was created."""
        return network.traffic(self.name, self.spec)

    def run(
        self,
        argv: Sequence[str],
        *,
        ranks: int,
        launcher: Launcher,
        timeout: float | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a program on a number of ranks, the lanes of h0 first; see `launch`."""
        words = ["-n", str(ranks), *argv]
        return self.launch(words, launcher=launcher, timeout=timeout, variables=variables)

    def launch(
        self,
        words: Sequence[str],
        *,
        launcher: Launcher,
        timeout: float | None = None,
        variables: Mapping[str, str] | None = None,
        capture: bool = True,
    ) -> Completed:
        """Run mpiexec with `words` on h0; end it with all its ranks after `timeout` s.

        A host that dies is an error, whatever the status of mpiexec. All processes of the job have
        ended when this method returns or raises.
        """
        line, own = mpi.start(launcher, self._files, words)
        with running(self.name):
            self._files.write(self.spec)
            before = self.counters()
            begun = time.monotonic()
            process = subprocess.Popen(
                self._files.first(line),
                env={**os.environ, **own, **(variables or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if capture else None,
                stderr=subprocess.PIPE if capture else None,
                text=True,
                errors="replace",
                start_new_session=True,  # only this process gets an interrupt, and ends the job
            )
            out, err = self._output(process, words, timeout)
            spent = time.monotonic() - begun
            after = self.counters()
            if died := self._files.died():  # check at any status: Open MPI 5 may end with 0
                hosts = ", ".join(died)
                raise CommschedError(f"testbed {self.name!r}: host {hosts} died during the job")
        passed = tuple(now.since(then) for now, then in zip(after, before, strict=True))
        status = process.returncode
        return Completed(status if status >= 0 else 128 - status, out, err, passed, spent)

    def _output(
        self, process: "subprocess.Popen[str]", words: Sequence[str], timeout: float | None
    ) -> tuple[str, str]:
        try:
            out, err = self._watched(process, words, timeout)
        except BaseException:
            self._end(process)
            raise
        network.kill(network.found().get(self.name, []))
        return out or "", err or ""

    def _watched(
        self, process: "subprocess.Popen[str]", words: Sequence[str], timeout: float | None
    ) -> tuple[str | None, str | None]:
        """Wait for the end; raise if a port vanishes, because an MPI would then wait forever."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                return process.communicate(timeout=min(LOOK, max(0.0, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                if not network.connected(self.name, self.spec):
                    raise network.vanished(self.name) from None
                if time.monotonic() >= end:
                    raise CommschedError(
                        f"testbed {self.name!r}: '{shlex.join(words)}' took more than"
                        f" {timeout:g} s and was ended"
                    ) from None

    def _end(self, process: "subprocess.Popen[str]") -> None:
        """Kill the first process, which ends all others, and wait until they have ended."""
        process.kill()
        network.kill(network.found().get(self.name, []))
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def checked(name: str) -> str:
    """Reject a name that no namespace can have."""
    if re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name, re.ASCII) is None:
        raise CommschedError(
            f"testbed {name[:60]!r}: a name has 1 to 32 of the characters a-z, 0-9 and -"
        )
    return name


def _build(name: str, spec: Spec) -> None:
    try:
        network.build(name, spec)
    except BaseException:
        network.remove(name)
        raise


def down(name: str) -> bool:
    """Remove a testbed, complete or not; return False if there was nothing."""
    system.require()
    with _changing(checked(name)):
        there = network.remove(name)
        Files(name).remove()
    return there


def sweep() -> list[str]:
    """Remove temporary testbeds whose process has died; return their names."""
    gone = [name for name in network.found() if _orphaned(name)]
    for name in gone:
        down(name)
    return gone


def _orphaned(name: str) -> bool:
    owner = re.fullmatch(r"run-([0-9]+)-[0-9]+", name)
    return owner is not None and not Path("/proc", owner[1]).exists()


def in_use(name: str) -> bool:
    """Tell whether a job runs on a testbed."""
    try:
        with running(name):
            return False
    except CommschedError:
        return True


def running(name: str) -> AbstractContextManager[None]:
    """Lock a testbed for one job: its counters cannot separate two jobs."""
    return _locked(name, "-job", 0.0)


def _changing(name: str) -> AbstractContextManager[None]:
    return _locked(name, "", WAIT)


def _locked(name: str, what: str, wait: float) -> AbstractContextManager[None]:
    files.make_folder(home())
    return locked(home() / f"{name}{what}", f"testbed {name!r}", wait)
