"""A testbed that is up: run MPI jobs on it, read what passed its ports, take it down."""

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
from types import TracebackType
from typing import NamedTuple

from commsched.errors import CommschedError
from commsched.lab.testbed import mpi, network, system
from commsched.lab.testbed.hosts import Files
from commsched.lab.testbed.mpi import Launcher
from commsched.lab.testbed.network import Traffic
from commsched.lab.testbed.spec import Spec

NAME = "main"
NUMBERS = itertools.count()  # of temporary testbeds of this process
LOOK = 2.0  # s between looks at the ports during a job; a look takes 2 ms
WAIT = 60.0  # s for another process that builds or removes the same testbed


class Completed(NamedTuple):
    """How a job ended."""

    status: int  # of mpiexec; 128 + signal where one ended it
    stdout: str  # of all ranks; empty where it was not captured
    stderr: str
    counters: tuple[Traffic, ...]  # what passed each host's port during the job
    seconds: float


class Testbed:
    """Hosts that are up; a with block takes them down at its end."""

    __test__ = False  # not a test case of pytest

    def __init__(self, name: str, spec: Spec) -> None:
        self.name, self.spec = name, spec
        self._files = Files(name)

    @classmethod
    def up(
        cls, hosts: int = 4, lanes: int = 2, rates: Sequence[str] = (), name: str | None = None
    ) -> "Testbed":
        """Make it so; without a name it is temporary, and swept up should this process die.

        A testbed of that name that is like this stays as it is, another one is replaced.
        """
        spec = Spec.of(hosts, lanes, rates)
        name = checked(name or f"run-{os.getpid()}-{next(NUMBERS)}")
        system.require()
        sweep()
        with _changing(name):
            if network.read(name) != spec:
                with running(name):
                    network.remove(name)
                    _build(name, spec)
        return cls(name, spec)

    @classmethod
    def find(cls, name: str = NAME) -> "Testbed":
        """The testbed of that name, which must be up."""
        system.require()
        spec = network.read(checked(name))
        if spec is None:
            state = "is not whole" if name in network.found() else "is not up"
            raise CommschedError(f"testbed {name!r} {state}; commsched testbed up")
        return cls(name, spec)

    def __enter__(self) -> "Testbed":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def down(self) -> None:
        """Take it away, with whatever runs on it."""
        down(self.name)

    def counters(self) -> tuple[Traffic, ...]:
        """What passed each host's port since the testbed was made."""
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
        """Run a program on so many ranks, the lanes of h0 first; see `launch`."""
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
        """Run mpiexec with `words` on h0, ended with all its ranks after `timeout` s.

        A host that dies is an error, however mpiexec ends. Nothing that it started is left when
        this returns or raises.
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
                start_new_session=True,  # an interrupt comes to us alone; we end the job
            )
            out, err = self._output(process, words, timeout)
            spent = time.monotonic() - begun
            after = self.counters()
            if died := self._files.died():  # whatever the status: Open MPI 5 may end with 0 then
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
        """Wait for the end; a port that vanishes would let an MPI wait for ever."""
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
        """Kill the first process, with which all others end, and make sure that they did."""
        process.kill()
        network.kill(network.found().get(self.name, []))
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def checked(name: str) -> str:
    """Refuse a name that no namespace can have."""
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
    """Take away whatever is there of a testbed; False where there was nothing."""
    system.require()
    with _changing(checked(name)):
        there = network.remove(name)
        Files(name).remove()
    return there


def sweep() -> list[str]:
    """Take away temporary testbeds whose process has died; returns their names."""
    gone = [name for name in network.found() if _orphaned(name)]
    for name in gone:
        down(name)
    return gone


def _orphaned(name: str) -> bool:
    owner = re.fullmatch(r"run-([0-9]+)-[0-9]+", name)
    return owner is not None and not Path("/proc", owner[1]).exists()


def in_use(name: str) -> bool:
    """Whether a job runs on a testbed."""
    try:
        with running(name):
            return False
    except CommschedError:
        return True


def running(name: str) -> AbstractContextManager[None]:
    """Hold a testbed for one job: the counters of two would mix."""
    return system.lock(f"{name}-job", 0.0, f"testbed {name!r} is in use by another job")


def _changing(name: str) -> AbstractContextManager[None]:
    return system.lock(name, WAIT, f"testbed {name!r} is being changed by another process")
