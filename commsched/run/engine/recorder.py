"""Collect the spans of this rank and write them to its own file."""

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
        """Remove a pause from the timeline; all streams are idle, and all ranks remove as much."""
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
    """Drops all spans, for trainings whose spans would not fit into memory."""

    def keep(self, span: Span) -> None:
        """Drop the span."""
