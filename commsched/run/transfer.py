"""One exchange over MPI: non-blocking messages that leave and are merged in schedule order."""

from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from commsched.codecs import Array
from commsched.methods import Held
from commsched.run.clock import now
from commsched.run.script import Receive, script
from commsched.schedule import Schedule

AHEAD = 4  # receives posted before they are needed: bounds the buffers of one exchange
CUT = 2**30  # B; longer messages go in pieces, because counts of 2**31 fail or are silently wrong


class Waiting(NamedTuple):
    """Whom an exchange waits for, and for how many bytes."""

    direction: str  # "from" or "to" a peer, "among" all for the MPI's own
    peer: int  # member of the group
    nbytes: int | None  # None: not known yet


class Exchange(Protocol):
    """An exchange under way."""

    sent: int  # B handed to MPI by this rank
    moves: int  # grows whenever something happened
    coded: float  # s spent in encoding, adding and decoding

    def progress(self) -> bool:
        """Do what can be done now without waiting; True when the exchange is over."""

    def waiting(self) -> list[Waiting]:
        """Whom it waits for."""


class Parcel:
    """A packet under way whose size both ends know, in pieces that MPI can count."""

    def __init__(self, requests: list[MPI.Request], packet: Array) -> None:
        self.requests = requests
        self.packet = packet

    def done(self) -> bool:
        """Test the pieces in order; over once the last is."""
        while self.requests and self.requests[0].Test():
            self.requests.pop(0)
        return not self.requests


class Probed:
    """A packet of unknown size under way: probed piece by piece until one is shorter than CUT."""

    def __init__(self, comm: MPI.Intracomm, peer: int, tag: int) -> None:
        self._comm, self._peer, self._tag = comm, peer, tag
        self._request: MPI.Request | None = None
        self._pieces: list[Array] = []
        self.packet: Array = None

    def done(self) -> bool:
        """Take what is announced; over once the last piece is here."""
        while self.packet is None:
            if self._request is None:
                status = MPI.Status()
                message = self._comm.Improbe(self._peer, self._tag, status)
                if message is None:
                    return False
                self._pieces.append(np.empty(status.Get_count(MPI.BYTE), np.uint8))
                self._request = message.Irecv([self._pieces[-1], MPI.BYTE])
            if not self._request.Test():
                return False
            self._request = None
            if len(self._pieces[-1]) < CUT:
                whole = len(self._pieces) == 1
                self.packet = self._pieces[0] if whole else np.concatenate(self._pieces)
        return True


def pieces(packet: Array) -> list[Array]:
    """View a packet as runs of CUT bytes; the last one is shorter, which tells the receiver so."""
    data = packet.view(np.uint8)
    return [data[i : i + CUT] for i in range(0, len(data) + 1, CUT)]


class Transfer:
    """The MPI side of a schedule for one rank, driven by `progress`.

    Receives are merged strictly in schedule order, so that equal inputs give equal bits whatever
    arrives first; sends leave in schedule order as soon as what they carry is merged.
    """

    def __init__(self, schedule: Schedule, held: Held, comm: MPI.Intracomm, tag: int) -> None:
        self._script = script(schedule, comm.rank)
        self._held = held
        self._comm = comm
        self._tag = tag
        self._posted: deque[Parcel | Probed] = deque()  # receives under way, in schedule order
        self._leaving: deque[Parcel] = deque()  # sends under way, in schedule order
        self._merged = 0
        self._left = 0
        self._issued = 0  # sends
        self.sent = 0
        self.moves = 0
        self.coded = 0.0

    def progress(self) -> bool:
        """Post, test and merge until nothing more can be done now; True when all is over."""
        if self._idle():
            return False
        moved = True
        while moved:
            moved = self._send()
            moved = self._post() or moved
            moved = self._merge() or moved
            self.moves += moved
        return self._left == len(self._script.sends) and self._merged == len(self._script.receives)

    def _idle(self) -> bool:
        """Whether the messages that everything waits for are still under way: one look for both."""
        if not (self._posted and self._leaving):
            return False
        first, last = self._posted[0], self._leaving[0]
        if isinstance(first, Probed) or not (first.requests and last.requests):
            return False
        _, found = MPI.Request.Testany([first.requests[0], last.requests[0]])
        return not found

    def _send(self) -> bool:
        moved = False
        while self._leaving and self._leaving[0].done():
            self._leaving.popleft()
            self._left += 1
            moved = True
        sends = self._script.sends
        # One at a time: what has left gets on while the next packet is made.
        if self._issued < len(sends) and sends[self._issued].merged <= self._merged:
            send = sends[self._issued]
            started = now()
            packet = self._held.take(send.first, send.stop)
            self.coded += now() - started
            requests = [
                self._comm.Isend([piece, MPI.BYTE], send.peer, self._tag)
                for piece in pieces(packet)
            ]
            self._leaving.append(Parcel(requests, packet))
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

    def _receive(self, move: Receive) -> Parcel | Probed | None:
        """Post a receive; None while one of unknown size must wait for the ones before it."""
        packet = self._held.landing(move.first, move.stop, move.add)
        if packet is None:
            return None if self._posted else Probed(self._comm, move.peer, self._tag)
        if self._left < move.sent or self._merged < move.merged:
            packet = np.empty_like(packet)  # in place is what earlier moves still need
        requests = [
            self._comm.Irecv([piece, MPI.BYTE], move.peer, self._tag) for piece in pieces(packet)
        ]
        return Parcel(requests, packet)

    def _merge(self) -> bool:
        moved = False
        while self._posted and self._posted[0].done():
            move = self._script.receives[self._merged]
            if self._left < move.sent:
                break  # the blocks are still being sent
            packet = self._posted.popleft().packet
            merge = self._held.add if move.add else self._held.put
            started = now()
            merge(move.first, move.stop, packet)
            self.coded += now() - started
            self._merged += 1
            moved = True
        return moved

    def waiting(self) -> list[Waiting]:
        found = []
        if self._merged < len(self._script.receives):
            move = self._script.receives[self._merged]
            packet = self._held.landing(move.first, move.stop, True)
            found.append(Waiting("from", move.peer, None if packet is None else packet.nbytes))
        if self._leaving:
            send = self._script.sends[self._left]
            found.append(Waiting("to", send.peer, self._leaving[0].packet.nbytes))
        return found


class Native:
    """The MPI's own all-reduce, non-blocking, on the bucket in place."""

    def __init__(self, held: Held, comm: MPI.Intracomm) -> None:
        values = held.take(0, 1)
        # Counts of 2**31 elements fail in some MPIs; every rank cuts alike.
        self._requests = [
            comm.Iallreduce(MPI.IN_PLACE, values[i : i + CUT // 4], op=MPI.SUM)
            for i in range(0, len(values), CUT // 4)
        ]
        self.sent = values.nbytes
        self.moves = 0
        self.coded = 0.0  # what MPI adds is not seen

    def progress(self) -> bool:
        """Test; True when it is over."""
        while self._requests and self._requests[0].Test():
            self._requests.pop(0)
            self.moves += 1
        return not self._requests

    def waiting(self) -> list[Waiting]:
        return [Waiting("among", -1, self.sent)]


def begin(schedule: Schedule, held: Held, comm: MPI.Intracomm, tag: int) -> Exchange:
    """Start an exchange over `comm`, whose ranks are the schedule's."""
    if schedule.rounds is None:
        return Native(held, comm)
    return Transfer(schedule, held, comm, tag)
