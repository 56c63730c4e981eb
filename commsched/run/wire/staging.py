"""Packets of a device on their way through MPI: by its pointers, or in chunks by host memory."""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from commsched.coding.codec import Array
from commsched.exchange.endpoint import Endpoint
from commsched.run.wire.device import ComputeDevice, Event, Instant
from commsched.run.wire.host import pieces
from commsched.run.wire.path import Exchange, Moving, PendingMove

CHUNK = 2 * 2**20  # B; chosen so that a copy by PCIe takes longer than to begin it; not tuned yet
POINTED = 64 * 2**20  # B; so that what goes through the host in spite of pointers overlaps, too
SLOTS = 2  # chunks of a packet in host memory: one is copied while the other is with MPI
LEAST = 4096  # B of the smallest memory that is kept


class PinnedPool(NamedTuple):
    """Memory that MPI reads or writes: (n,) uint8, at the beginning of what is kept for reuse."""

    memory: Array
    whole: Array


class Way(Protocol):
    """What lies between the memory of a device and MPI."""

    device: ComputeDevice
    cut: int  # B of a message
    slots: int  # messages of a packet at a time

    def out(self, piece: Array) -> tuple[Event, PinnedPool]:
        """What MPI may read of (n,) uint8 of the device, from the event on."""

    def room(self, piece: Array) -> tuple[Event, PinnedPool]:
        """Where MPI may write what is for (n,) uint8 of the device, from the event on."""

    def put(self, room: PinnedPool, piece: Array) -> Event:
        """Bring what MPI has written to its place; it is there from the event on."""

    def give(self, room: PinnedPool) -> None:
        """Memory that is free again."""


class StagedPath:
    """Through pinned memory of the host: the copy of a chunk and the message of another overlap."""

    slots = SLOTS

    def __init__(self, device: ComputeDevice, cut: int) -> None:
        self.device, self.cut = device, cut
        self._free: dict[int, list[Array]] = defaultdict(list)  # by B, a power of two

    def _take(self, nbytes: int) -> PinnedPool:
        """Memory of the host; what was given back serves again, because pinning takes long."""
        size = max(LEAST, 1 << (nbytes - 1).bit_length())
        free = self._free[size]
        whole = free.pop() if free else self.device.host(size)
        return PinnedPool(whole[:nbytes], whole)

    def out(self, piece: Array) -> tuple[Event, PinnedPool]:
        room = self._take(piece.nbytes)
        return self.device.copy_out(piece, room.memory) if piece.nbytes else Instant(), room

    def room(self, piece: Array) -> tuple[Event, PinnedPool]:
        return Instant(), self._take(piece.nbytes)

    def put(self, room: PinnedPool, piece: Array) -> Event:
        return self.device.copy_in(room.memory, piece) if piece.nbytes else Instant()

    def give(self, room: PinnedPool) -> None:
        self._free[len(room.whole)].append(room.whole)

    def join(self, comm: MPI.Intracomm) -> None:
        """MPI is ready."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> "Ordered":
        return Ordered(self, comm, tag)

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        return HostSum(self, held, comm)


class Pointers:
    """MPI reads and writes the device's memory, once what the device was given before is done."""

    slots = 2**31

    def __init__(self, device: ComputeDevice, cut: int) -> None:
        self.device, self.cut = device, cut
        self._sums = StagedPath(device, cut)

    def out(self, piece: Array) -> tuple[Event, PinnedPool]:
        return self.device.mark(), PinnedPool(piece, piece)

    room = out

    def put(self, room: PinnedPool, piece: Array) -> Event:
        return Instant()

    def give(self, room: PinnedPool) -> None:
        """It is the packet's own."""

    def join(self, comm: MPI.Intracomm) -> None:
        """MPI is ready."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> "Ordered":
        return Ordered(self, comm, tag)

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        """Through the host: MPIs crash when they reduce on a device, or copy to the host."""
        return HostSum(self._sums, held, comm)


class Ordered:
    """The messages of one exchange; those between the same two ranks keep their order.

    MPI matches messages in the order in which they are posted, so a packet is posted only when all
    of the one before, to or from the same rank, is. Each packet has memory of its own: one that a
    rank does not take yet keeps none to another rank from leaving.
    """

    def __init__(self, way: Way, comm: MPI.Intracomm, tag: int) -> None:
        self.way, self.comm, self.tag = way, comm, tag
        self._live: list[OutgoingChunks | IncomingChunks | Found] = []
        self._last: dict[tuple[bool, int], Cut] = {}  # to or from, rank

    def send(self, packet: Array, peer: int) -> Moving:
        module = self.way.device.module
        if isinstance(packet, np.ndarray) and module is not np:
            packet = module.asarray(packet)
        moving = OutgoingChunks(self, packet, peer, self._last.get((True, peer)))
        self._last[True, peer] = moving
        self._live.append(moving)
        return moving

    def receive(self, packet: Array, peer: int) -> Moving:
        module = self.way.device.module
        if isinstance(packet, np.ndarray) and module is not np:  # of a codec: only its size counts
            packet = module.empty(packet.shape, packet.dtype)
        moving = IncomingChunks(self, packet, peer, self._last.get((False, peer)))
        self._last[False, peer] = moving
        self._live.append(moving)
        return moving

    def bounded(self, most: int, peer: int) -> None:
        """Chunks say how long a packet is."""

    def probe(self, peer: int) -> Moving:
        moving = Found(self, peer)
        self._live.append(moving)
        return moving

    def progress(self) -> bool:
        moved = False
        for moving in self._live:
            moved = moving.advance() or moved
        self._live = [moving for moving in self._live if not moving.over]
        return moved

    def quiet(self, first: Sequence[Moving]) -> bool:
        """Progress has looked at every packet."""
        return False

    def mark(self) -> Event:
        return self.way.device.mark()


class Cut:
    """A packet of known size that goes piece by piece, after the one before with the same peer."""

    def __init__(self, lane: Ordered, packet: Array, peer: int, before: "Cut | None") -> None:
        self.packet = packet
        self._lane, self._peer, self._before = lane, peer, before
        self._ahead = deque(pieces(packet, lane.way.cut))
        self._made: deque[tuple[Event, PinnedPool, Array]] = deque()

    @property
    def posted(self) -> bool:
        """Whether MPI has all of it, or knows where all of it goes."""
        return not self._ahead and not self._made

    def _ready(self) -> Iterator[tuple[PinnedPool, Array]]:
        """The pieces, with their rooms, that MPI may be given now."""
        if self._before is not None and self._before.posted:
            self._before = None
        while self._before is None and self._made and self._made[0][0].done():
            yield self._made.popleft()[1:]


class OutgoingChunks(Cut):
    """A packet that is sent: piece by piece made readable for MPI, then handed to it."""

    def __init__(self, lane: Ordered, packet: Array, peer: int, before: Cut | None) -> None:
        super().__init__(lane, packet, peer, before)
        self._sent: deque[tuple[MPI.Request, PinnedPool]] = deque()
        self.advance()

    @property
    def over(self) -> bool:
        return self.posted and not self._sent

    def advance(self) -> bool:
        """Do what can be done now; True where something happened."""
        way, comm, moved = self._lane.way, self._lane.comm, False
        while self._sent and self._sent[0][0].Test():
            way.give(self._sent.popleft()[1])
            moved = True
        while self._ahead and len(self._made) + len(self._sent) < way.slots:
            piece = self._ahead.popleft()
            self._made.append((*way.out(piece), piece))
            moved = True
        for room, _ in self._ready():
            request = comm.Isend([room.memory, MPI.BYTE], self._peer, self._lane.tag)
            self._sent.append((request, room))
            moved = True
        return moved

    def done(self) -> bool:
        self.advance()
        return self.over


class IncomingChunks(Cut):
    """A packet of known size that is received, piece by piece, and brought to its place."""

    def __init__(self, lane: Ordered, packet: Array, peer: int, before: Cut | None) -> None:
        super().__init__(lane, packet, peer, before)
        self._asked: deque[tuple[MPI.Request, PinnedPool, Array]] = deque()
        self._copied: deque[tuple[Event, PinnedPool]] = deque()
        self.advance()

    @property
    def over(self) -> bool:
        return self.posted and not self._asked and not self._copied

    def advance(self) -> bool:
        """Do what can be done now; True where something happened."""
        way, moved = self._lane.way, False
        while self._copied and self._copied[0][0].done():
            way.give(self._copied.popleft()[1])
            moved = True
        while self._asked and self._asked[0][0].Test():
            _, room, piece = self._asked.popleft()
            self._copied.append((way.put(room, piece), room))
            moved = True
        return self._post() or moved

    def _post(self) -> bool:
        way, comm, moved = self._lane.way, self._lane.comm, False
        under_way = len(self._made) + len(self._asked) + len(self._copied)
        while self._ahead and under_way < way.slots:
            piece = self._ahead.popleft()
            self._made.append((*way.room(piece), piece))
            under_way += 1
            moved = True
        for room, piece in self._ready():
            request = comm.Irecv([room.memory, MPI.BYTE], self._peer, self._lane.tag)
            self._asked.append((request, room, piece))
            moved = True
        return moved

    def done(self) -> bool:
        self.advance()
        return self.over


class Found:
    """A packet of unknown size: probed piece by piece until one is shorter than a whole one."""

    def __init__(self, lane: Ordered, peer: int) -> None:
        self.packet: Array = None
        self._lane, self._peer = lane, peer
        self._announced: tuple[MPI.Message, Event, PinnedPool, Array] | None = None
        self._asked: tuple[MPI.Request, PinnedPool, Array] | None = None
        self._copied: deque[tuple[Event, PinnedPool]] = deque()
        self._pieces: list[Array] = []
        self._last = False  # the piece that was asked for

    @property
    def over(self) -> bool:
        return self.packet is not None

    def advance(self) -> bool:
        """Do what can be done now; True where something happened."""
        way, moved = self._lane.way, False
        while self._copied and self._copied[0][0].done():
            way.give(self._copied.popleft()[1])
            moved = True
        if self._asked is not None and self._asked[0].Test():
            _, room, piece = self._asked
            self._copied.append((way.put(room, piece), room))
            self._asked, moved = None, True
        moved = self._ask() or moved
        if self._last and not self._copied and self._asked is None and self.packet is None:
            whole = len(self._pieces) == 1
            module = way.device.module
            self.packet = self._pieces[0] if whole else module.concatenate(self._pieces)
        return moved

    def _ask(self) -> bool:
        """Receive what is announced, one piece at a time."""
        way, comm, tag = self._lane.way, self._lane.comm, self._lane.tag
        moved = False
        idle = self._announced is None and self._asked is None and not self._last
        if idle and len(self._copied) < way.slots:
            status = MPI.Status()
            message = comm.Improbe(self._peer, tag, status)
            if message is None:
                return False
            piece = way.device.module.empty(status.Get_count(MPI.BYTE), np.uint8)
            self._pieces.append(piece)
            self._announced, moved = (message, *way.room(piece), piece), True
        if self._announced is not None and self._announced[1].done():
            message, _, room, piece = self._announced
            request = message.Irecv([room.memory, MPI.BYTE])
            self._asked, self._announced = (request, room, piece), None
            self._last, moved = len(piece) < way.cut, True
        return moved

    def done(self) -> bool:
        self.advance()
        return self.over


class HostSum:
    """The MPI's own all-reduce of a bucket of the device, chunk by chunk in memory of the host."""

    def __init__(self, way: StagedPath, held: Endpoint, comm: MPI.Intracomm) -> None:
        values = held.take(0, 1)
        self._way, self._comm = way, comm
        self._ahead = deque(piece for piece in pieces(values, way.cut) if len(piece))
        self._made: deque[tuple[Event, PinnedPool, Array]] = deque()
        self._asked: deque[tuple[MPI.Request, PinnedPool, Array]] = deque()
        self._copied: deque[tuple[Event, PinnedPool]] = deque()
        self.sent = values.nbytes
        self.moves = 0
        self.coded = 0.0  # what MPI adds is not seen

    def progress(self) -> bool:
        """Begin and end what can be; the chunks are summed in the same order on all ranks."""
        way = self._way
        while self._copied and self._copied[0][0].done():
            way.give(self._copied.popleft()[1])
            self.moves += 1
        while self._asked and self._asked[0][0].Test():
            _, room, piece = self._asked.popleft()
            self._copied.append((way.put(room, piece), room))
            self.moves += 1
        while self._made and self._made[0][0].done():
            _, room, piece = self._made.popleft()
            numbers = room.memory.view(np.float32)
            request = self._comm.Iallreduce(MPI.IN_PLACE, numbers, op=MPI.SUM)
            self._asked.append((request, room, piece))
            self.moves += 1
        under_way = len(self._made) + len(self._asked) + len(self._copied)
        while self._ahead and under_way < way.slots:
            piece = self._ahead.popleft()
            self._made.append((*way.out(piece), piece))
            under_way += 1
        return not (self._ahead or self._made or self._asked or self._copied)

    def waiting(self) -> list[PendingMove]:
        return [PendingMove("among", -1, self.sent)]
