"""The rule by which all placers decide which operation a stream serves next, and when it starts.

A stream serves one operation at a time. Operations of a step that are equally urgent keep their
order. Among the first operation of each urgency, a stream serves the one that can begin first, and
the most urgent one if several can. An operation can begin when its stream is free and its
inputs are there. An operation of several parties, such as an exchange, begins once it is at the
head of its stream on all of them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.program.model import Kind, Op, is_exchange_stream

EXCHANGES = (Kind.EXCHANGE, Kind.DECIDE)
TOGETHER = 1e-11  # s between moments that count as one: additions round

Queued = tuple[int, Op]  # step and operation


class StreamQueue:
    """The operations that wait for a stream, by step and urgency."""

    def __init__(self, entries: Iterable[Queued] = ()) -> None:
        self._queues: dict[tuple[int, int], deque[Op]] = {}
        for entry in entries:
            self.append(entry)

    def __bool__(self) -> bool:
        return bool(self._queues)

    def append(self, entry: Queued) -> None:
        """Queue an operation of a step."""
        step, op = entry
        self._queues.setdefault((step, op.urgency), deque()).append(op)

    def heads(self) -> list[Queued]:
        """Return the first operation of each urgency of the oldest step, the most urgent first."""
        keys = list(self._queues) if len(self._queues) < 2 else sorted(self._queues)
        return [(key[0], self._queues[key][0]) for key in keys if key[0] == keys[0][0]]

    def take(self, step: int, op: Op) -> None:
        """Remove one of the `heads`."""
        queue = self._queues[step, op.urgency]
        assert queue.popleft() is op
        if not queue:
            del self._queues[step, op.urgency]


def serve_next(
    free: Floats | float, ready: Floats | Sequence[float], urgency: Ints | Sequence[int]
) -> tuple[Ints, Floats]:
    """Choose the head of a stream that is served next: its number, (columns,).

        begin = max(free, ready)

    free [s]: until when the stream is busy; ready [s]: when each head has its inputs, inf if not
    known yet, (heads, columns); urgency: (heads, 1). Also returns every `begin`. If heads begin
    together, the most urgent one is chosen, then the first one.
    """
    begin = np.maximum(free, ready)
    return (begin + TOGETHER * np.asarray(urgency)).argmin(axis=0), begin


def next_head(free: float, ready: Sequence[float], heads: Sequence[Op]) -> int:
    """Choose among the heads of one stream of one rank; see `serve_next`."""
    return int(serve_next(free, ready, [op.urgency for op in heads])[0])


def serve(
    queues: Mapping[tuple[int, str], StreamQueue],
    partners: Callable[[int, int, Op], Sequence[int]],
    ready: Callable[[int, int, Op], bool],
    perform: Callable[[int, Sequence[int], Sequence[Op]], None],
) -> None:
    """Perform all queued operations in an order that their inputs allow.

    queues: by party (a rank, or a role of equal ranks) and stream. `partners(party, step, op)`: the
    parties that take part in an operation. `ready(party, step, op)`: whether a party has the inputs
    of its end. `perform(step, parties, ops)`: perform an operation; `ops` are the parties' ends.
    """

    def at_head(party: int, step: int, op: Op) -> Op | None:
        heads = queues[party, op.stream].heads() if (party, op.stream) in queues else []
        found = (head for s, head in heads if (s, head.name) == (step, op.name))
        head = next(found, None)
        return head if head is not None and ready(party, step, head) else None

    def served(party: int, stream: str) -> bool:
        for step, op in queues[party, stream].heads():
            if not ready(party, step, op):
                continue
            parties = partners(party, step, op)
            found = (op if each == party else at_head(each, step, op) for each in parties)
            ends = [end for end in found if end is not None]
            if len(ends) == len(parties):
                for each, end in zip(parties, ends, strict=True):
                    queues[each, stream].take(step, end)
                perform(step, parties, ends)
                return True
        return False

    moved = True
    while moved:
        moved = False
        for party, stream in queues:
            while served(party, stream):
                moved = True
                if is_exchange_stream(stream):
                    break  # the decode that it starts shares the processor with the next one
    stuck = [op.name for queue in queues.values() for _, op in queue.heads()]
    assert not stuck, f"operations wait for each other: {stuck}"
