"""The paths for device packets: by device pointers, or in chunks through host memory."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.exchange.endpoint import Endpoint
from commsched.run.wire.device import ComputeDevice, Event, Instant
from commsched.run.wire.host import pieces
from commsched.run.wire.path import Exchange, Moving, PendingMove

CHUNK = 2 * 2**20  # B; a PCIe copy of this size takes longer than its start-up; not tuned yet
POINTED = 64 * 2**20  # B; pieces of packets that MPI stages itself overlap, too
SLOTS = 2  # chunks of a packet in host memory: one is copied while the other is with MPI
LEAST = 4096  # B of the smallest buffer kept for reuse


class PinnedPool(NamedTuple):
    """Memory for MPI to read or write: (n,) uint8 at the start of a reusable buffer."""

    memory: Array
    whole: Array


class StagedPath:
    """A path through pinned host memory: the copy of one chunk overlaps the message of another."""

    slots = SLOTS
    whole = 0

    def __init__(self, device: ComputeDevice, cut: int) -> None:
        self.device, self.cut = device, cut
        self._free: dict[int, list[Array]] = defaultdict(list)  # by B, a power of two

    def _take(self, nbytes: int) -> PinnedPool:
        """Return host memory; freed memory is reused, because pinning is slow."""
        size = max(LEAST, 1 << (nbytes - 1).bit_length())
        free = self._free[size]
        whole = free.pop() if free else self.device.host(size)
        return PinnedPool(whole[:nbytes], whole)

    def out(self, piece: Array) -> tuple[Event, PinnedPool]:
        """Return memory with (n,) uint8 of the device, which MPI may read after the event."""
        room = self._take(piece.nbytes)
        return self.device.copy_out(piece, room.memory) if piece.nbytes else Instant(), room

    def room(self, piece: Array) -> tuple[Event, PinnedPool]:
        """Return memory for (n,) uint8 of the device, which MPI may write after the event."""
        return Instant(), self._take(piece.nbytes)

    def put(self, room: PinnedPool, piece: Array) -> Event:
        """Copy received data to its place on the device; the copy is complete at the event."""
        return self.device.copy_in(room.memory, piece) if piece.nbytes else Instant()

    def give(self, room: PinnedPool) -> None:
        """Take back memory that is no longer used."""
        self._free[len(room.whole)].append(room.whole)

    def join(self, comm: MPI.Intracomm) -> None:
        """Nothing to prepare: MPI is always ready."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> "Ordered":
        return Ordered(self, comm, tag)

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        return HostSum(self, held, comm)


class Pointers(StagedPath):
    """A path by pointers: MPI accesses device memory once the device's earlier work is done."""

    slots = 2**31

    def out(self, piece: Array) -> tuple[Event, PinnedPool]:
        return self.device.mark(), PinnedPool(piece, piece)

    room = out

    def put(self, room: PinnedPool, piece: Array) -> Event:
        return Instant()

    def give(self, room: PinnedPool) -> None:
        """Do nothing: the memory is the packet's own."""

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        """Sum in host memory: MPI libraries crash when they reduce on a device or copy from it."""
        return HostSum(self._sums, held, comm)

    @cached_property
    def _sums(self) -> StagedPath:
        return StagedPath(self.device, self.cut)


class Ordered:
    """The messages of one exchange; messages between the same two ranks keep their order.

    MPI matches messages in the order in which they are posted. So a packet is posted only once the
    previous packet to or from the same rank is posted completely. Each packet has its own memory:
    a packet that its receiver does not take yet does not delay packets to other ranks.
    """

    def __init__(self, way: StagedPath, comm: MPI.Intracomm, tag: int) -> None:
        self.way, self.comm, self.tag = way, comm, tag
        self._live: list[Chunks] = []
        self._last: dict[tuple[str, int], Chunks] = {}  # "to" or "from", rank

    def _begin(self, chunks: "Chunks") -> "Chunks":
        chunks.advance()
        self._live.append(chunks)
        return chunks

    def _in_turn(self, direction: str, peer: int, chunks: "Chunks") -> "Chunks":
        """Begin a packet of known size after the previous packet to or from the same rank."""
        chunks.before = self._last.get((direction, peer))
        self._last[direction, peer] = chunks
        return self._begin(chunks)

    def send(self, packet: Array, peer: int) -> Moving:
        way, comm = self.way, self.comm
        if isinstance(packet, np.ndarray) and way.device.module is not np:
            packet = way.device.module.asarray(packet)

        def post(memory: Array) -> MPI.Request:
            return comm.Isend([memory, MPI.BYTE], peer, self.tag)

        return self._in_turn("to", peer, Chunks(way, packet, way.out, post, None))

    def receive(self, packet: Array, peer: int) -> Moving:
        way, comm = self.way, self.comm
        if isinstance(packet, np.ndarray) and way.device.module is not np:
            packet = way.device.module.empty(packet.shape, packet.dtype)  # only the size matters

        def post(memory: Array) -> MPI.Request:
            return comm.Irecv([memory, MPI.BYTE], peer, self.tag)

        return self._in_turn("from", peer, Chunks(way, packet, way.room, post, way.put))

    def bounded(self, most: int, peer: int) -> None:
        """Return None: a packet's length follows from its chunks."""

    def probe(self, peer: int) -> Moving:
        return self._begin(ProbedChunks(self.way, self.comm, peer, self.tag))

    def progress(self) -> bool:
        moved = any([packet.advance() for packet in self._live])
        self._live = [packet for packet in self._live if not packet.over]
        return moved

    def quiet(self, first: Sequence[Moving]) -> bool:
        """Return False: `progress` has looked at every packet already."""
        return False

    def mark(self) -> Event:
        return self.way.device.mark()


class Chunks:
    """A packet sent or received in chunks: each is prepared, passed to MPI, then completed."""

    def __init__(
        self,
        way: StagedPath,
        packet: Array,
        prepare: Callable[[Array], tuple[Event, PinnedPool]],
        post: Callable[[Array], MPI.Request],
        finish: Callable[[PinnedPool, Array], Event] | None,
    ) -> None:
        self.packet = packet
        self.before: Chunks | None = None  # previous packet, which is posted first
        self._way, self._prepare, self._post, self._finish = way, prepare, post, finish
        self._ahead = deque(pieces(packet, way.cut)) if packet is not None else deque()
        self._prepared: deque[tuple[Event, PinnedPool, Array]] = deque()
        self._with_mpi: deque[tuple[MPI.Request, PinnedPool, Array]] = deque()
        self._finishing: deque[tuple[Event, PinnedPool]] = deque()

    @property
    def posted(self) -> bool:
        """Tell whether all chunks have been passed to MPI."""
        return not self._ahead and not self._prepared

    @property
    def over(self) -> bool:
        return self.posted and not self._with_mpi and not self._finishing

    def done(self) -> bool:
        self.advance()
        return self.over

    def advance(self) -> bool:
        """Make progress without waiting; return True if something happened."""
        moved = self._end_chunks()
        moved = self._prepare_chunks() or moved
        return self._post_chunks() or moved

    def _end_chunks(self) -> bool:
        """Complete chunks, and free the memory of arrived ones."""
        moved = False
        while self._finishing and self._finishing[0][0].done():
            self._way.give(self._finishing.popleft()[1])
            moved = True
        while self._with_mpi and self._with_mpi[0][0].Test():
            _, room, piece = self._with_mpi.popleft()
            if self._finish is None:
                self._way.give(room)
            else:
                self._finishing.append((self._finish(room, piece), room))
            moved = True
        return moved

    def _prepare_chunks(self) -> bool:
        moved = False
        under_way = len(self._prepared) + len(self._with_mpi) + len(self._finishing)
        while under_way < self._way.slots and (piece := self._next_chunk()) is not None:
            self._prepared.append((*self._prepare(piece), piece))
            under_way += 1
            moved = True
        return moved

    def _next_chunk(self) -> Array | None:
        return self._ahead.popleft() if self._ahead else None

    def _post_chunks(self) -> bool:
        """Pass the ready chunks to MPI, in order."""
        if self.before is not None and self.before.posted:
            self.before = None
        moved = False
        while self.before is None and self._prepared and self._prepared[0][0].done():
            _, room, piece = self._prepared.popleft()
            self._with_mpi.append((self._post(room.memory), room, piece))
            moved = True
        return moved


class ProbedChunks(Chunks):
    """A packet of unknown size, probed chunk by chunk until one is shorter than a whole chunk."""

    def __init__(self, way: StagedPath, comm: MPI.Intracomm, peer: int, tag: int) -> None:
        super().__init__(way, None, way.room, self._take, way.put)
        self._comm, self._peer, self._tag = comm, peer, tag
        self._message: MPI.Message | None = None  # announced, and not received yet
        self._pieces: list[Array] = []
        self._last = False  # whether the last chunk was announced

    @property
    def over(self) -> bool:
        return self.packet is not None

    def _take(self, memory: Array) -> MPI.Request:
        assert self._message is not None
        return self._message.Irecv([memory, MPI.BYTE])

    def _next_chunk(self) -> Array | None:
        """Receive the announced chunks, one at a time."""
        if self._last or self._prepared or self._with_mpi:
            return None
        status = MPI.Status()
        self._message = self._comm.Improbe(self._peer, self._tag, status)
        if self._message is None:
            return None
        module = self._way.device.module
        self._pieces.append(module.empty(status.Get_count(MPI.BYTE), np.uint8))
        self._last = len(self._pieces[-1]) < self._way.cut
        return self._pieces[-1]

    def advance(self) -> bool:
        moved = super().advance()
        if self._last and self.packet is None and super().over:
            whole = len(self._pieces) == 1
            module = self._way.device.module
            self.packet = self._pieces[0] if whole else module.concatenate(self._pieces)
        return moved


class HostSum(Chunks):
    """MPI's own all-reduce of a device's bucket, chunk by chunk in memory of the host.

    The chunks are summed in the same order on all ranks.
    """

    def __init__(self, way: StagedPath, held: Endpoint, comm: MPI.Intracomm) -> None:
        values = held.take(0, 1)

        def post(memory: Array) -> MPI.Request:
            return comm.Iallreduce(MPI.IN_PLACE, memory.view(np.float32), op=MPI.SUM)

        super().__init__(way, values, way.out, post, way.put)
        self._ahead = deque(piece for piece in self._ahead if len(piece))
        self.sent = values.nbytes
        self.moves = 0
        self.coded = 0.0  # MPI's time for additions is unknown

    def progress(self) -> bool:
        """Begin and end chunks; True once the sum is over."""
        self.moves += self.advance()
        return self.over

    def waiting(self) -> list[PendingMove]:
        return [PendingMove("among", -1, self.sent)]
