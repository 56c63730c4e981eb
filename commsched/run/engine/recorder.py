"""The recorder of this rank's spans: it passes them on as they end and keeps none in memory."""

import threading
from collections import Counter
from collections.abc import Callable

from commsched.run.engine.last_operations import LastOperations
from commsched.timeline.model import Span
from commsched.timeline.parts import PartWriter

KEEP = 256  # steps whose bytes are counted


class Recorder:
    """A recorder that passes each span of all streams to `takers`, and to the rank's file, if any.

    `flush` appends the spans to the file later, because writing would delay their streams.
    """

    def __init__(self, rank: int, writer: PartWriter | None = None) -> None:
        self.takers: list[Callable[[Span], None]] = []
        self.last: LastOperations | None = None
        self.timeline = None if writer is None else writer.timeline
        self._rank = rank
        self._writer = writer
        self._fresh: list[Span] = []  # not yet in the file
        self._paused = 0.0  # s that later spans are moved back by
        self._lock = threading.Lock()
        self.sent: Counter[int] = Counter()  # step -> B handed to MPI, of the newest steps

    def add(
        self,
        stream: str,
        name: str,
        step: int,
        start: float,
        end: float,
        nbytes: int = 0,
        coded: float = 0.0,
        decided: float | None = None,
    ) -> None:
        """Add a span, in seconds on this rank's clock; `coded` seconds of it went into coding."""
        if nbytes:
            self.sent[step] += nbytes
            self.sent.pop(step - KEEP, None)
        start, end = start - self._paused, max(start, end) - self._paused
        self.keep(Span(self._rank, stream, name, step, start, end, 0.0, nbytes, coded, decided))

    def begin(self, stream: str, name: str, step: int, start: float) -> None:
        """Record the begin of an operation that waits for other ranks: it may be the last one."""
        if self.last is not None:
            start -= self._paused
            self.last.begin(Span(self._rank, stream, name, step, start, start, 0.0, 0))

    def keep(self, span: Span) -> None:
        """Pass on a new span; called in the thread of its stream."""
        if self._writer is not None:
            self._fresh.append(span)
        if self.last is not None:
            self.last.take(span)
        for take in self.takers:
            take(span)

    def leave_out(self, seconds: float) -> None:
        """Remove a pause from the timeline, equally long on all ranks; all streams are idle."""
        self._paused += seconds

    def flush(self) -> None:
        """Write all new spans to the file, and drop them."""
        with self._lock:
            fresh = self._fresh[:]
            if self._writer is not None and fresh:
                self._writer.append(fresh)
            del self._fresh[: len(fresh)]  # other threads may have added spans meanwhile

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        if self._writer is not None:
            self._writer.close()
