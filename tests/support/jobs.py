"""Start ranks from a test that is itself no rank, and leave none of them behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from commsched.run.job.launcher import environment, environment_rank, find_mpiexec

ROOT = Path(__file__).parents[2]
# A program's first lines: ranks that miss each other say so within tenths of seconds.
IMPATIENT = """
from commsched.run.job.deadlines import Deadlines, use
use(Deadlines(look=0.05, idle=0.05, meeting=2.0, grace=0.5))
"""
MARK = "COMMSCHED_TEST_JOB"  # in the environment of everything that a job starts
RUN = [sys.executable, "-m", "commsched", "run"]
MAIN = "import sys\nfrom commsched.cli.main import main\nraise SystemExit(main(sys.argv[1:]))\n"
IMPATIENT_RUN = [sys.executable, "-c", IMPATIENT + MAIN, "run"]
# Of pytest on ranks. Nothing is captured: a rank that ends the job would take its reason along, and
# Hydra reports only ranks that it has killed itself by then ("EXIT CODE: 9").
TESTS_OF_RANKS = ("tests/mpi", "-q", "-x", "-p", "no:cacheprovider", "--capture=no")


class Ended(NamedTuple):
    """How a job ended."""

    status: int
    output: str  # stdout and stderr of all ranks, as they came


class Job:
    """A command under mpiexec, or several programs at once; killed at the end of the with block."""

    def __init__(
        self,
        ranks: int | Sequence[int],
        *commands: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        counts = [ranks] if isinstance(ranks, int) else ranks
        line = [find_mpiexec()]
        for number, (count, command) in enumerate(zip(counts, commands, strict=True)):
            line += [":"] * (number > 0) + ["-n", str(count), *command]
        self._start(line, environment() | dict(variables or {}))

    def _start(self, line: Sequence[str], variables: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        self._out = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the job
        self.process = subprocess.Popen(
            line,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": path, MARK: self.mark} | variables,
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        """What was printed so far."""
        return os.pread(self._out.fileno(), 10**8, 0).decode(errors="replace")

    def wait(self, seconds: float) -> Ended:
        """Wait until the job has ended; an AssertionError with its output if it does not."""
        try:
            return Ended(self.process.wait(seconds), self.output)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.output}") from None

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until a condition holds while the job runs."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"ended too early:\n{self.output}"
            assert time.monotonic() < end, f"nothing after {seconds} s:\n{self.output}"
            time.sleep(0.02)

    def processes(self) -> dict[int, int | None]:
        """Every living process of this job, with its rank; launchers and helpers have none."""
        return {
            int(entry.name): environment_rank(found)
            for entry in Path("/proc").iterdir()
            if entry.name.isdecimal() and (found := variables_of(entry)).get(MARK) == self.mark
        }

    def rank(self, wanted: int) -> int:
        """The process id of a rank."""
        (found,) = [pid for pid, rank in self.processes().items() if rank == wanted]
        return found

    def left(self, seconds: float = 10.0) -> dict[int, int | None]:
        """The processes that are still there, some time after the end."""
        end = time.monotonic() + seconds
        while (found := self.processes()) and time.monotonic() < end:
            time.sleep(0.05)
        return found

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # nothing where it has ended: its number may be another's by now
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        self._out.close()


class Single(Job):
    """A command without a launcher."""

    def __init__(self, *command: str, variables: Mapping[str, str] | None = None) -> None:
        self._start(command, variables or {})


def variables_of(process: Path) -> dict[str, str]:
    """The environment that a process was started with; empty for a zombie or another user's."""
    try:
        content = (process / "environ").read_bytes()
    except OSError:
        return {}
    words = content.decode(errors="replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)
