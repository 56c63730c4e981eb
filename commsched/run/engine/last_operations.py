"""The last operations of this rank, in a memory-mapped file that survives any end of the process.

Neither SIGKILL nor an abort loses what was written: the system keeps the pages of the file. The
file lies beside the timeline, if there is one, else in a separate folder; a job that ends well
removes the file. `timeline/last_report.py` reads it.
"""

import itertools
import mmap
from math import nan
from pathlib import Path

import msgspec
from mpi4py import MPI

from commsched import files
from commsched.errors import CommschedError
from commsched.plan.model import Plan
from commsched.program.model import STREAMS
from commsched.program.registry import STRATEGIES
from commsched.run.engine.unnamed_timeline import hold, is_unnamed, make_room, tidy, unnamed
from commsched.run.job import lifeline
from commsched.run.job.ending import say
from commsched.timeline.last_report import KEPT, LAST, ROW
from commsched.timeline.model import Span
from commsched.timeline.parts import PartHeader, find, part_path


class LastOperations:
    """A ring of the last operations; one row per stream holds the operation that began last."""

    def __init__(self, plan: Plan, comm: MPI.Intracomm, timeline: Path | None) -> None:
        """Make the file; all ranks call it. If the folder is not writable, print that and go on."""
        if timeline is not None and comm.rank == 0:
            for old in find(timeline, LAST).values():  # may be of an earlier job with more ranks
                old.unlink(missing_ok=True)
        comm.Barrier()  # else rank 0 might remove the new file of another rank
        # Hosts may keep their parts of a timeline in separate folders.
        self.base = timeline or unnamed(comm)
        self.path = part_path(self.base, comm.rank, LAST)
        names = tuple(STRATEGIES[plan.strategy].operations(plan))
        header = PartHeader(
            plan_hash=plan.hash, ranks=comm.size, rank=comm.rank, streams=STREAMS, names=names
        )
        line = msgspec.json.encode(header) + b"\n"
        self._begun = {name: len(line) + i * ROW.size for i, name in enumerate(STREAMS)}
        self._rows = len(line) + len(STREAMS) * ROW.size
        self._next = itertools.count(1)
        self._map: mmap.mmap | None = None
        try:
            self._make(line + bytes(ROW.size * (len(STREAMS) + KEPT)))
        except (OSError, CommschedError) as error:
            say(f"rank {comm.rank}: its last operations are not kept: {error}")
        lifeline.note(self.told)

    def _make(self, content: bytes) -> None:
        if is_unnamed(self.base):
            make_room(self.base)
        files.write_bytes(self.path, content)  # allocate all of it: later the disk may be full
        with self.path.open("r+b") as file:
            hold(file)  # the map has a copy of the descriptor
            self._map = mmap.mmap(file.fileno(), len(content))

    def begin(self, span: Span) -> None:
        """Record the beginning of an operation: a span without a length."""
        self._put(self._begun[span.stream], 1, span)

    def take(self, span: Span) -> None:
        """Record a finished operation; called in the thread of its stream."""
        number = next(self._next)
        self._put(self._rows + number % KEPT * ROW.size, number, span)

    def _put(self, at: int, number: int, span: Span) -> None:
        if self._map is not None:
            _, stream, name, step, *numbers, decided = span
            told = nan if decided is None else decided
            names = stream.encode(), name.encode()
            ROW.pack_into(self._map, at, number, step, *numbers, told, *names, number)

    @property
    def told(self) -> str:
        """Name the command that shows the last operations of a job without a timeline."""
        if self._map is None or not is_unnamed(self.base):
            return ""
        return f"`commsched show {self.base}.{LAST}` has the last operations of the ranks"

    def remove(self) -> None:
        """Remove the file: the job has ended well."""
        if self._map is not None:
            self._map.close()
            self._map = None
            self.path.unlink(missing_ok=True)
            tidy(self.base)
            lifeline.note("")
