"""The merge of all ranks' spans on rank 0 into one timeline file, some steps at a time.

Memory does not grow with the length of the run: rank 0 holds the spans of these steps, and the
newest spans for a summary.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
from mpi4py import MPI

from commsched import files
from commsched.arrays import Ints
from commsched.run.job import agree
from commsched.run.job.watchdog import Watchdog
from commsched.timeline import file as timeline_file
from commsched.timeline.measure import waiting_filled
from commsched.timeline.model import Columns, Timeline
from commsched.timeline.parts import PartHeader, PartRow, PartWriter, on_clock, rows_of

AT_ONCE = 2**15  # spans of all ranks that are merged at one time, about 1 kB each
NEWEST = 2**19  # spans that rank 0 keeps for a summary


def steps_at_once(ranks: int, names: int) -> int:
    """Return how many steps of `names` operations are merged at one time."""
    return max(1, AT_ONCE // (ranks * max(1, names)))


def merge(
    comm: MPI.Intracomm,
    path: Path,
    writer: PartWriter,
    part: PartHeader,
    apart: Mapping[str, Ints],
    dog: Watchdog,
) -> Timeline | None:
    """Write the file on rank 0, which returns the timeline's newest steps; other ranks return None.

    `part` is the header as known at the end of the run; `apart`: see `waiting_filled`.
    """

    def on_first(work: Callable[[], None]) -> None:
        agree.on_all_ranks(work if comm.rank == 0 else lambda: None, comm)

    ends, at = writer.ends, writer.begin
    first = min(agree.gather_numbers(min(ends, default=2**31), comm))
    last = max(agree.gather_numbers(max(ends, default=-1), comm))
    shifts = agree.gather_numbers(part.clock_offset_us * 1e-6 - part.t0, comm)
    words = msgspec.json.encode([[*writer.streams], [*writer.names]]).decode()
    every = [msgspec.json.decode(text) for text in agree.gather_text(words, comm)]
    merged = _Merged(path, part, every, shifts, apart)
    with ExitStack() as stack:
        own = agree.on_all_ranks(lambda: stack.enter_context(files.opened(writer.path)), comm)
        on_first(partial(merged.begin, stack))
        own.seek(at)
        for block in range(int(first), int(last) + 1):
            text = own.read(max(0, ends.get(block, 0) - at))
            at += len(text)
            on_first(partial(merged.add, agree.bring(text, comm), (block + 1) * writer.block))
            dog.beat()
        on_first(partial(merged.end, stack))
    writer.path.unlink(missing_ok=True)
    return merged.newest() if comm.rank == 0 else None


class _Merged:
    """The merged timeline on rank 0: its file, and its newest steps."""

    def __init__(
        self,
        path: Path,
        part: PartHeader,
        words: list[list[list[str]]],
        shifts: Sequence[float],
        apart: Mapping[str, Ints],
    ) -> None:
        """Take each rank's streams and names in `words`, and s to add to its clock in `shifts`."""
        self._path, self._part, self._apart, self._shifts = path, part, apart, shifts
        streams, names = zip(*words, strict=True)
        self._streams = tuple(dict.fromkeys(chain(part.streams, *streams)))
        self._names = tuple(dict.fromkeys(chain(part.names, *names)))
        self._lanes = [(r, self._streams.index(s)) for r, each in enumerate(streams) for s in each]
        self._later: list[list[PartRow]] = [[] for _ in words]  # rows of steps that come later
        self._newest: deque[Timeline] = deque()
        self._dropped = False

    def begin(self, stack: ExitStack) -> None:
        """Begin the file, which gets its final name when `end` closes the stack."""
        file = stack.enter_context(files.writing(self._path))
        self._writer = timeline_file.Writer(
            file, str(self._path), self._timeline(Columns(self._streams, self._names)), self._lanes
        )

    def add(self, texts: Sequence[bytes], stop: int) -> None:
        """Write the spans of the steps before `stop` from the next lines of each rank's part."""
        columns = Columns(self._streams, self._names)
        for rank, text in enumerate(texts):
            rows = [*self._later[rank], *rows_of(text.splitlines())]
            self._later[rank] = [row for row in rows if row.step >= stop]
            now = (row for row in rows if row.step < stop)
            columns.add(on_clock(now, rank, self._shifts[rank]))
        piece = waiting_filled(self._timeline(columns), self._apart)
        self._writer.add(piece)
        self._newest.append(piece)
        while len(self._newest) > 1 and sum(map(len, self._newest)) > NEWEST:
            self._newest.popleft()
            self._dropped = True

    def end(self, stack: ExitStack) -> None:
        """Give the file its final name."""
        self._writer.end()
        stack.close()

    def newest(self) -> Timeline:
        """Return the newest steps; warn if they are not all."""
        columns = Columns(self._streams, self._names)
        for piece in self._newest:
            columns.add_timeline(piece)
        found = self._timeline(columns)
        if not self._dropped:
            return found
        since = f"{self._path} has all steps; summarised here are those from {found.step.min()} on"
        return found.warned(since)

    def _timeline(self, columns: Columns) -> Timeline:
        part = self._part
        return columns.timeline(
            header=part.meta,
            plan_hash=part.plan_hash,
            ranks=part.ranks,
            clock_uncertainty=part.clock_uncertainty_us * 1e-6,
        )
