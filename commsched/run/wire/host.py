"""Messages that MPI reads and writes directly in memory of the host."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.exchange.endpoint import Endpoint
from commsched.run.wire.device import Event, Instant
from commsched.run.wire.path import Moving, PendingMove
from commsched.schedule.rounds import Schedule

PERSISTENT = MPI.Get_version() >= (4, 0)  # MPI has persistent all-reduces
CUT = 2**30  # B; longer messages go in pieces, because counts of 2**31 fail or are silently wrong


class Parcel:
    """A packet under way whose size both ends know, in pieces short enough for MPI's counts."""

    def __init__(self, requests: list[MPI.Request], packet: Array) -> None:
        self.requests = requests
        self.packet = packet

    def done(self) -> bool:
        """Test the pieces in order; True once the last piece is done."""
        status = MPI.Status()
        while self.requests and self.requests[0].Test(status):
            self.over(status)
        return not self.requests

    def over(self, status: MPI.Status) -> None:
        """Tell whether the first piece has arrived, or has left."""
        self.requests.pop(0)


class Bounded(Parcel):
    """A packet under way that may be shorter than its receive buffer."""

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
        """Receive announced pieces; True once the last piece has arrived."""
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
    """View a packet as runs of `cut` bytes; the shorter last run marks the end."""
    cut, data = cut or CUT, packet.view(np.uint8)
    return [data[i : i + cut] for i in range(0, len(data) + 1, cut)]


class InPlace:
    """Messages that MPI reads and writes directly in memory of the host."""

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
        """Do nothing: MPI moves the packets."""
        return False

    def quiet(self, first: Sequence[Moving]) -> bool:
        """Test the first piece of all these packets in one call of MPI."""
        parcels = [each for each in first if isinstance(each, Parcel) and each.requests]
        if not parcels or len(parcels) < len(first):
            return False
        status = MPI.Status()
        which, over = MPI.Request.Testany([each.requests[0] for each in parcels], status)
        if over:
            parcels[which].over(status)
        return not over

    def mark(self) -> Event:
        return Instant()


class PlainPath:
    """A path for host memory, in pieces of `cut` bytes, which must be equal on all ranks."""

    def __init__(self, cut: int | None = None, persistent: bool = PERSISTENT) -> None:
        self.whole = cut or CUT
        self.persistent = persistent  # native sums are persistent; equal on all ranks

    def join(self, comm: MPI.Intracomm) -> None:
        """Do nothing: MPI needs no preparation."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> InPlace:
        return InPlace(comm, tag, self.whole)

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> "Native":
        return Native(held, comm, self.whole, self.persistent)


class Native:
    """MPI's own all-reduce of a bucket in place, non-blocking; `start` begins it again."""

    def __init__(self, held: Endpoint, comm: MPI.Intracomm, cut: int, persistent: bool) -> None:
        values, step = held.take(0, 1), cut // 4
        self._held, self._comm, self._persistent = held, comm, persistent
        # Counts of 2**31 elements fail in some MPIs; every rank cuts alike.
        self._runs = [values[i : i + step] for i in range(0, len(values), step)]
        self._requests: list[Any] = []  # MPI.Prequest; before MPI 4: MPI.Request
        if persistent:
            self._requests = [
                comm.Allreduce_init(MPI.IN_PLACE, run, op=MPI.SUM) for run in self._runs
            ]
        self.sent = values.nbytes
        self.coded = 0.0  # MPI's time for additions is unknown
        self.start()

    def fits(self, schedule: Schedule, held: Endpoint) -> bool:
        """Tell whether this finished sum can be started again for the given exchange."""
        return schedule.library and held is self._held

    def start(self) -> None:
        """Begin the sum; the previous one is over."""
        self.moves = 0
        if self._persistent:
            MPI.Prequest.Startall(self._requests)
        else:
            self._requests = [
                self._comm.Iallreduce(MPI.IN_PLACE, run, op=MPI.SUM) for run in self._runs
            ]

    def free(self) -> None:
        """Free the MPI requests; no sum may be under way."""
        for request in self._requests if self._persistent else ():
            request.Free()

    def progress(self) -> bool:
        """Test the requests; True once the sum is over."""
        while self.moves < len(self._requests) and self._requests[self.moves].Test():
            self.moves += 1
        return self.moves == len(self._requests)

    def waiting(self) -> list[PendingMove]:
        return [PendingMove("among", -1, self.sent)]


PLAIN = PlainPath()
