"""Spans of this rank, on their way to its own file."""

import threading
from collections import Counter

from commsched.timeline.model import Span
from commsched.timeline.parts import PartWriter

KEEP = 256  # steps whose bytes are counted


class Recorder:
    """Collects spans from all streams; `flush` appends the new ones to the rank's file."""

    def __init__(self, rank: int, writer: PartWriter | None) -> None:
        self.spans: list[Span] = []
        self._rank = rank
        self._writer = writer
        self._flushed = 0
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
    ) -> None:
        """Add a span, in seconds on this rank's clock; `coded` seconds of it went into coding."""
        if nbytes:
            self.sent[step] += nbytes
            self.sent.pop(step - KEEP, None)
        start, end = start - self._paused, max(start, end) - self._paused
        self.keep(Span(self._rank, stream, name, step, start, end, 0.0, nbytes, coded))

    def keep(self, span: Span) -> None:
        """Hold a new span; called in the thread of its stream."""
        self.spans.append(span)

    def leave_out(self, seconds: float) -> None:
        """Cut a pause out of the timeline: all streams were idle, and all ranks cut as much."""
        self._paused += seconds

    def flush(self) -> None:
        """Hand all new spans to the operating system."""
        with self._lock:
            fresh = self.spans[self._flushed :]
            self._flushed += len(fresh)
            if self._writer is not None and fresh:
                self._writer.append(fresh)

    def close(self) -> None:
        """Flush and close the file."""
        self.flush()
        if self._writer is not None:
            self._writer.close()


class Forgetful(Recorder):
    """Keeps no spans: a training of a million steps has none to spare memory for."""

    def keep(self, span: Span) -> None:
        """Drop the span."""
