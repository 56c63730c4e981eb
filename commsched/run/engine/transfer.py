"""One exchange over MPI: non-blocking messages that leave and are merged in schedule order."""

from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from commsched.coding.codec import Array
from commsched.exchange.endpoint import Endpoint
from commsched.exchange.memory import AHEAD
from commsched.run.engine.script import Receive, script
from commsched.run.wire.device import Event, Instant
from commsched.schedule.rounds import Schedule

CUT = 2**30  # B; longer messages go in pieces, because counts of 2**31 fail or are silently wrong


class PendingMove(NamedTuple):
    """Whom an exchange waits for, and for how many bytes."""

    direction: str  # "from" or "to" a peer, "among" all for the MPI's own
    peer: int  # member of the group
    nbytes: int | None  # None: not known yet


class Exchange(Protocol):
    """An exchange under way."""

    sent: int  # B handed to MPI by this rank
    moves: int  # grows whenever something happened

    @property
    def coded(self) -> float:
        """Seconds spent in encoding, adding and decoding; once it is over. Waits for a device."""

    def progress(self) -> bool:
        """Do what can be done now without waiting; True when the exchange is over."""

    def waiting(self) -> list[PendingMove]:
        """Whom it waits for."""


class Moving(Protocol):
    """A packet under way."""

    packet: Array  # of one of unknown size once it is here

    def done(self) -> bool:
        """Do what can be done now; True once it has left, or is here."""


class Lane(Protocol):
    """The messages of one exchange, between where its packets lie and MPI."""

    def send(self, packet: Array, peer: int) -> Moving:
        """Begin to send a packet, (n,); it must stay as it is until that is over."""

    def receive(self, packet: Array, peer: int) -> Moving:
        """Begin to receive a packet of known size into (n,), or into another beside the bucket."""

    def bounded(self, most: int, peer: int) -> Moving | None:
        """Begin to receive a packet of `most` bytes or fewer; None where it must be probed for."""

    def probe(self, peer: int) -> Moving:
        """Begin to receive a packet of unknown size."""

    def progress(self) -> bool:
        """Get on with all packets under way; True where something happened."""

    def mark(self) -> Event:
        """The end of all that was given so far to the device where the packets lie."""


class Path(Protocol):
    """How packets get from where they lie to MPI and back."""

    def join(self, comm: MPI.Intracomm) -> None:
        """Get ready for native sums among these ranks; all of them call it."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> Lane:
        """For an exchange of its own."""

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> "Exchange":
        """Begin the MPI's own all-reduce."""


class Parcel:
    """A packet under way whose size both ends know, in pieces that MPI can count."""

    def __init__(self, requests: list[MPI.Request], packet: Array) -> None:
        self.requests = requests
        self.packet = packet

    def done(self) -> bool:
        """Test the pieces in order; over once the last is."""
        status = MPI.Status()
        while self.requests and self.requests[0].Test(status):
            self.over(status)
        return not self.requests

    def over(self, status: MPI.Status) -> None:
        """The first piece is here, or has left."""
        self.requests.pop(0)


class Bounded(Parcel):
    """A packet under way that may be shorter than where it is received."""

    def over(self, status: MPI.Status) -> None:
        self.requests.pop(0)
        self.packet = self.packet[: status.Get_count(MPI.BYTE)]


class Probed:
    """A packet of unknown size under way: probed piece by piece until one is shorter than `cut`."""

    def __init__(self, comm: MPI.Intracomm, peer: int, tag: int, cut: int) -> None:
        self._comm, self._peer, self._tag, self._cut = comm, peer, tag, cut
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
            if len(self._pieces[-1]) < self._cut:
                whole = len(self._pieces) == 1
                self.packet = self._pieces[0] if whole else np.concatenate(self._pieces)
        return True


def pieces(packet: Array, cut: int | None = None) -> list[Array]:
    """View a packet as runs of `cut` bytes; the last one is shorter: it tells the receiver so."""
    cut, data = cut or CUT, packet.view(np.uint8)
    return [data[i : i + cut] for i in range(0, len(data) + 1, cut)]


class InPlace:
    """Messages that MPI reads and writes where they lie: in memory of the host."""

    def __init__(self, comm: MPI.Intracomm, tag: int, cut: int) -> None:
        self._comm, self._tag, self._cut = comm, tag, cut

    def send(self, packet: Array, peer: int) -> Parcel:
        cut = pieces(packet, self._cut)
        requests = [self._comm.Isend([piece, MPI.BYTE], peer, self._tag) for piece in cut]
        return Parcel(requests, packet)

    def receive(self, packet: Array, peer: int) -> Parcel:
        cut = pieces(packet, self._cut)
        requests = [self._comm.Irecv([piece, MPI.BYTE], peer, self._tag) for piece in cut]
        return Parcel(requests, packet)

    def bounded(self, most: int, peer: int) -> Bounded | None:
        if most >= self._cut:
            return None
        packet = np.empty(most, np.uint8)
        return Bounded([self._comm.Irecv([packet, MPI.BYTE], peer, self._tag)], packet)

    def probe(self, peer: int) -> Probed:
        return Probed(self._comm, peer, self._tag, self._cut)

    def progress(self) -> bool:
        """MPI does it."""
        return False

    def mark(self) -> Event:
        return Instant()


class PlainPath:
    """Packets in memory of the host, in pieces of `cut` bytes, which all ranks must agree on."""

    def __init__(self, cut: int | None = None) -> None:
        self._cut = cut

    def join(self, comm: MPI.Intracomm) -> None:
        """MPI is."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> InPlace:
        return InPlace(comm, tag, self._cut or CUT)

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> "Native":
        return Native(held, comm, self._cut or CUT)


class Transfer:
    """The MPI side of a schedule for one rank, driven by `progress`.

    Receives are merged strictly in schedule order, so that equal inputs give equal bits whatever
    arrives first; sends leave in schedule order as soon as what they carry is merged.
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
        self._probing = False  # for the packet that was posted last
        self.sent = 0
        self.moves = 0
        self._codings: list[tuple[Event, Event]] = []  # from when to when

    @property
    def coded(self) -> float:
        if self._codings:
            self._codings[-1][1].wait()
        return sum((end.when() - start.when() for start, end in self._codings), 0.0)

    def progress(self) -> bool:
        """Post, test and merge until nothing more can be done now; True when all is over."""
        if self._idle():
            return False
        moved = True
        while moved:
            moved = self._lane.progress()
            moved = self._send() or moved
            moved = self._post() or moved
            moved = self._merge() or moved
            self.moves += moved
        return self._left == len(self._script.sends) and self._merged == len(self._script.receives)

    def _idle(self) -> bool:
        """Whether the messages that everything waits for are still under way: one look for both."""
        first = [queue[0] for queue in (self._posted, self._leaving) if queue]
        parcels = [each for each in first if isinstance(each, Parcel) and each.requests]
        if not parcels or len(parcels) < len(first):
            return False
        status = MPI.Status()
        which, found = MPI.Request.Testany([each.requests[0] for each in parcels], status)
        if found:
            parcels[which].over(status)
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
        """Post a receive; None while one of unknown size must wait for the ones before it."""
        packet = self._held.landing(move.first, move.stop, move.add)
        if packet is None:
            return self._unknown(move)
        if self._left < move.sent or self._merged < move.merged:
            packet = np.empty_like(packet)  # in place is what earlier moves still need
        return self._lane.receive(packet, move.peer)

    def _unknown(self, move: Receive) -> Moving | None:
        """The same for a packet of unknown size: what is probed for must not be received before."""
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


class Native:
    """The MPI's own all-reduce, non-blocking, on the bucket in place."""

    def __init__(self, held: Endpoint, comm: MPI.Intracomm, cut: int) -> None:
        values, step = held.take(0, 1), cut // 4
        # Counts of 2**31 elements fail in some MPIs; every rank cuts alike.
        self._requests = [
            comm.Iallreduce(MPI.IN_PLACE, values[i : i + step], op=MPI.SUM)
            for i in range(0, len(values), step)
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

    def waiting(self) -> list[PendingMove]:
        return [PendingMove("among", -1, self.sent)]


PLAIN = PlainPath()


def begin(
    schedule: Schedule, held: Endpoint, comm: MPI.Intracomm, tag: int, path: Path = PLAIN
) -> Exchange:
    """Start an exchange over `comm`, whose ranks are the schedule's."""
    if schedule.rounds is None:
        return path.native(held, comm)
    return Transfer(schedule, held, comm.rank, path.lane(comm, tag))
