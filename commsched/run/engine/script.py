"""One rank's moves in a schedule, in order, and the conditions for each move on this rank."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from commsched.schedule.rounds import Schedule
from commsched.schedule.view import moves_of


class Send(NamedTuple):
    """A move out: blocks [first, stop) to `peer`, once the first `merged` receives are merged."""

    peer: int
    first: int
    stop: int
    merged: int


class Receive(NamedTuple):
    """A move in: merged once the first `sent` sends have left.

    The packet may be received in place once the first `sent` sends have left and the first `merged`
    receives are merged: until then its blocks are still needed. `earlier` sends belong to earlier
    rounds: waiting only for these cannot cause a deadlock.
    """

    peer: int
    first: int
    stop: int
    add: bool
    sent: int
    merged: int
    earlier: int


@dataclass(frozen=True, slots=True)
class Script:
    """One rank's sends and receives, each in schedule order."""

    sends: tuple[Send, ...]
    receives: tuple[Receive, ...]


@lru_cache(maxsize=1024)
def script(schedule: Schedule, rank: int) -> Script:
    """Derive a rank's script; a send carries the blocks as they were before its round."""
    out, into = moves_of(schedule, rank)
    last_receive = [0] * schedule.blocks  # 1 + index of the last receive of each block, so far
    last_send = [0] * schedule.blocks
    sends: list[Send] = []
    receives: list[Receive] = []
    begun, earlier = -1, 0
    for number, is_receive, move in sorted(
        [(m.round, False, m) for m in out] + [(m.round, True, m) for m in into],
        key=lambda row: row[:2],
    ):
        if number != begun:
            begun, earlier = number, len(sends)
        run = range(move.first, move.stop)
        merged = max((last_receive[b] for b in run), default=0)
        if is_receive:
            sent = max((last_send[b] for b in run), default=0)
            receives.append(
                Receive(move.peer, move.first, move.stop, move.add, sent, merged, earlier)
            )
            for b in run:
                last_receive[b] = len(receives)
        else:
            sends.append(Send(move.peer, move.first, move.stop, merged))
            for b in run:
                last_send[b] = len(sends)
    return Script(tuple(sends), tuple(receives))
