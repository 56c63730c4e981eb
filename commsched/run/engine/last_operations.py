"""Keep the last operations of this rank in a file mapped into memory, which outlives any end.

Neither SIGKILL nor an abort loses what was written: the system keeps the pages of the file. It lies
beside the timeline, if there is one, else in a folder of its own; a job that ends well removes it.
`timeline/last.py` reads it.
"""

import itertools
import mmap
import os
import tempfile
import time
from pathlib import Path

import msgspec
from mpi4py import MPI

from commsched import files
from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.program.model import STREAMS
from commsched.program.registry import STRATEGIES
from commsched.run.job import agree
from commsched.run.job.ending import say
from commsched.timeline.last import KEPT, LAST
from commsched.timeline.model import Span
from commsched.timeline.parts import PartHeader, find, part_path

FOLDER = "COMMSCHED_LAST"  # variable: the folder of jobs without a timeline
NUMBERS, NAME = 110, 200  # B of a line without its name, and at most of a name


class LastOperations:
    """Writes each operation over the oldest one; a slot per stream has the one that began last."""

    def __init__(self, plan: Plan, comm: MPI.Intracomm, timeline: Path | None) -> None:
        """Make the file; all ranks call it. A folder that cannot be written is said, no error."""
        self.beside = timeline is not None
        if timeline is not None and comm.rank == 0:
            for old in find(timeline, LAST).values():  # of a job with more ranks
                old.unlink(missing_ok=True)
        # Hosts may keep their parts of a timeline in folders of their own.
        self.base = timeline or Path(agree.gather_text(str(_unique()), comm)[0])
        self.path = part_path(self.base, comm.rank, LAST)
        names = tuple(STRATEGIES[plan.strategy].operations(plan))
        header = PartHeader(
            plan_hash=plan.hash, ranks=comm.size, rank=comm.rank, streams=STREAMS, names=names
        )
        self._encode = msgspec.json.Encoder().encode
        line = self._encode(header) + b"\n"
        self._width = NUMBERS + min(NAME, max(map(len, names), default=0))
        self._begun = {stream: self._place(len(line), i) for i, stream in enumerate(STREAMS)}
        self._rows = self._place(len(line), len(STREAMS))
        self._next = itertools.count()
        self._map: mmap.mmap | None = None
        try:
            self._make(line + (b" " * (self._width - 1) + b"\n") * (len(STREAMS) + KEPT))
        except (OSError, CommschedError) as error:
            say(f"rank {comm.rank}: its last operations are not kept: {error}")

    def _place(self, begin: int, line: int) -> int:
        return begin + line * self._width

    def _make(self, content: bytes) -> None:
        if not self.beside:
            self.base.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self.base.parent.stat().st_uid != os.getuid():
                raise PermissionError(f"{self.base.parent} belongs to another user")
        files.write_bytes(self.path, content)  # no hole, for which there might be no room later
        with self.path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), len(content))

    def begin(self, stream: str, name: str, step: int, start: float) -> None:
        """Note an operation that begins."""
        self._put(self._begun[stream], (stream, name, step, start, start, 0.0, 0))

    def take(self, span: Span) -> None:
        """Note an operation that has ended; called in the thread of its stream."""
        self._put(self._rows + next(self._next) % KEPT * self._width, span[1:])

    def _put(self, at: int, row: tuple[object, ...]) -> None:
        if self._map is None:
            return
        line = self._encode(row)
        if len(line) >= self._width:
            line = self._encode((row[0], f"{str(row[1])[: NAME // 4]}...", *row[2:]))
        if len(line) < self._width:
            self._map[at : at + self._width - 1] = line.ljust(self._width - 1)

    @property
    def told(self) -> str:
        """Say what the user cannot know: the name of a job without a timeline."""
        if self.beside or self._map is None:
            return ""
        return (
            f"the last operations of the ranks: `commsched show` reads them as {self.base}.{LAST}"
        )

    def remove(self) -> None:
        """Remove the file: the job has ended well."""
        if self._map is not None:
            self._map.close()
            self._map = None
            self.path.unlink(missing_ok=True)


def _unique() -> Path:
    """Return a name for a job without a timeline."""
    default = Path(tempfile.gettempdir()) / f"commsched-{os.getuid()}"
    folder = Path(os.environ.get(FOLDER, default))
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
