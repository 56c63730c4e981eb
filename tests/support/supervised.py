"""A job under a supervisor, whose ranks a test kills."""

import os
import signal
import sys
import time
from pathlib import Path

from tests.support.jobs import MAIN, Single

# A launcher that does not miss a failed rank is ended after MEETING s.
COMMSCHED = (
    "from commsched.run.job.deadlines import Deadlines, use\n"
    "use(Deadlines(look=0.05, meeting=MEETING))\n" + MAIN
)
# A rank that is no training: counts checkpoints in its manifest, as its first argument says.
COUNTING = """
import os, signal, sys, time
from pathlib import Path
from commsched.run.job.elastic import FOLDER, kept_step
from commsched.run.job.launcher import environment_rank

folder, how = Path(os.environ[FOLDER]), sys.argv[1]
step, lost = kept_step(folder) or 0, environment_rank() == 1
print(f"begins at {step}", flush=True)
if how == "refuse":
    raise SystemExit(2)
if how == "vain" or (how == "progress" and step < 2):
    if lost and how == "progress":
        (folder / "manifest.json").write_text('{"step": %d}' % (step + 1))
    if lost:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000)
"""


class Supervised(Single):
    """`commsched WORDS`, which starts ranks itself; `meeting` s after a rank failed it ends all."""

    def __init__(self, *words: str, meeting: float = 0.2) -> None:
        super().__init__(sys.executable, "-c", COMMSCHED.replace("MEETING", f"{meeting}"), *words)

    def rank(self, wanted: int) -> int:
        """The process id of a rank, not of its guard."""
        found = [pid for pid, rank in self.processes().items() if rank == wanted]
        (pid,) = [pid for pid in found if b"commsched.run.job.guard" not in _command(pid)]
        return pid

    def kill(self, rank: int) -> int:
        """Kill a rank as soon as it is there; return its process id."""
        end = time.monotonic() + 60
        while True:
            try:
                os.kill(pid := self.rank(rank), signal.SIGKILL)
                return pid
            except (ValueError, ProcessLookupError):
                assert time.monotonic() < end, self.output
                time.sleep(0.005)


def counting(folder: Path, how: str, *options: str) -> Supervised:
    """A supervised job of three ranks of `COUNTING`; all have time to refuse on a busy machine."""
    words = ("-n", "3", "--checkpoint", str(folder), *options)
    words = ("elastic", *words, "--", sys.executable, "-c", COUNTING, how)
    return Supervised(*words, meeting=30.0 if how == "refuse" else 0.2)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
