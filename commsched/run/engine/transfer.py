"""One exchange over MPI: non-blocking messages that leave and are merged in schedule order."""

from collections import deque

import numpy as np
from mpi4py import MPI

from commsched.exchange.endpoint import Endpoint
from commsched.exchange.memory import AHEAD
from commsched.run.engine.script import Receive, script
from commsched.run.wire.device import Event
from commsched.run.wire.host import PLAIN
from commsched.run.wire.path import Exchange, Lane, Moving, Path, PendingMove
from commsched.schedule.rounds import Schedule


class Transfer:
    """The MPI side of a schedule for one rank, driven by `progress`.

    Receives are merged strictly in schedule order, so that equal inputs give equal bits in any
    order of arrival; sends leave in schedule order as soon as their blocks are merged.
    """

    def __init__(self, schedule: Schedule, held: Endpoint, rank: int, lane: Lane) -> None:
        self._script = script(schedule, rank)
        self._held = held
        self._lane = lane
        self._posted: deque[Moving] = deque()  # receives under way, in schedule order
        self._leaving: deque[Moving] = deque()  # sends under way, in schedule order
        self._merged = 0
        self._left = 0
        self._issued = 0  # sends
        self._probing = False  # for the last posted packet
        self.sent = 0
        self.moves = 0
        self._codings: list[tuple[Event, Event]] = []  # start and end

    @property
    def coded(self) -> float:
        if self._codings:
            self._codings[-1][1].wait()
        return sum((end.when() - start.when() for start, end in self._codings), 0.0)

    def progress(self) -> bool:
        """Post, test and merge as far as possible without waiting; True: the exchange is over."""
        first = [queue[0] for queue in (self._posted, self._leaving) if queue]
        if first and self._lane.quiet(first):
            return False
        moved = True
        while moved:
            moved = self._lane.progress()
            moved = self._send() or moved
            moved = self._post() or moved
            moved = self._merge() or moved
            self.moves += moved
        return self._left == len(self._script.sends) and self._merged == len(self._script.receives)

    def _send(self) -> bool:
        moved = False
        while self._leaving and self._leaving[0].done():
            self._leaving.popleft()
            self._left += 1
            moved = True
        sends = self._script.sends
        # One at a time: earlier packets travel while the next one is encoded.
        if self._issued < len(sends) and sends[self._issued].merged <= self._merged:
            send = sends[self._issued]
            start = self._lane.mark()
            packet = self._held.take(send.first, send.stop)
            self._codings.append((start, self._lane.mark()))
            self._leaving.append(self._lane.send(packet, send.peer))
            self.sent += packet.nbytes
            self._issued += 1
            moved = True
        return moved

    def _post(self) -> bool:
        moved = False
        receives = self._script.receives
        while len(self._posted) < AHEAD:
            number = self._merged + len(self._posted)
            if number == len(receives):
                break
            parcel = self._receive(receives[number])
            if parcel is None:
                break
            self._posted.append(parcel)
            moved = True
        return moved

    def _receive(self, move: Receive) -> Moving | None:
        """Post a receive; None: a packet of unknown size must wait for the earlier ones."""
        packet = self._held.landing(move.first, move.stop, move.add)
        if packet is None:
            return self._unknown(move)
        if self._left < move.sent or self._merged < move.merged:
            packet = np.empty_like(packet)  # earlier moves still need the block in its place
        return self._lane.receive(packet, move.peer)

    def _unknown(self, move: Receive) -> Moving | None:
        """Begin to receive a packet of unknown size; probe only after all earlier packets."""
        if self._probing and self._posted:
            return None
        most = self._held.most(move.first, move.stop)
        moving = None if most is None else self._lane.bounded(most, move.peer)
        self._probing = moving is None
        if moving is None and not self._posted:
            moving = self._lane.probe(move.peer)
        return moving

    def _merge(self) -> bool:
        moved = False
        while self._posted and self._posted[0].done():
            move = self._script.receives[self._merged]
            if self._left < move.sent:
                break  # the blocks are still being sent
            packet = self._posted.popleft().packet
            merge = self._held.add if move.add else self._held.put
            start = self._lane.mark()
            merge(move.first, move.stop, packet)
            self._codings.append((start, self._lane.mark()))
            self._merged += 1
            moved = True
        return moved

    def waiting(self) -> list[PendingMove]:
        found = []
        if self._merged < len(self._script.receives):
            move = self._script.receives[self._merged]
            packet = self._held.landing(move.first, move.stop, True)
            found.append(PendingMove("from", move.peer, None if packet is None else packet.nbytes))
        if self._leaving:
            send = self._script.sends[self._left]
            found.append(PendingMove("to", send.peer, self._leaving[0].packet.nbytes))
        return found


def begin(
    schedule: Schedule, held: Endpoint, comm: MPI.Intracomm, tag: int, path: Path = PLAIN
) -> Exchange:
    """Start an exchange over `comm`, whose ranks are the schedule's."""
    if schedule.library:
        return path.native(held, comm)
    return Transfer(schedule, held, comm.rank, path.lane(comm, tag))
