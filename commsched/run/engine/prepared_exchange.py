"""An exchange of packets of known size, compiled once and started in every step.

The rounds of a schedule become a table of MPI's persistent requests, receive buffers and additions,
in schedule order. A step starts and tests the requests. Packets of unknown size go through
`transfer` instead.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from commsched.arrays import Array
from commsched.exchange.endpoint import Endpoint, ReducingEndpoint
from commsched.exchange.memory import AHEAD
from commsched.run.engine.script import Receive, Send, script
from commsched.run.job.clock import now
from commsched.run.wire.path import PendingMove
from commsched.schedule.rounds import Schedule


class Leaving(NamedTuple):
    """One send: its move, and a request if the packet lies in the same memory in every step."""

    move: Send
    nbytes: int
    request: MPI.Prequest | None


class Coming(NamedTuple):
    """One receive: its move, its buffer, and how the packet is merged."""

    move: Receive
    packet: Array
    in_place: bool
    request: MPI.Prequest
    merge: Callable[[], None]


class Landing:
    """Memory for packets that are not received in place, shared by consecutive exchanges."""

    def __init__(self) -> None:
        self._slots: list[Array] = [np.empty(0, np.uint8)] * AHEAD
        self.grown = 0  # number of times; exchanges compiled before keep the older memory

    def grow(self, number: int, nbytes: int) -> None:
        """Make room for receive `number` of an exchange; every AHEAD-th receive reuses the room."""
        slot = number % AHEAD
        if len(self._slots[slot]) < nbytes:
            self._slots[slot] = np.empty(nbytes, np.uint8)
            self.grown += 1

    def like(self, number: int, packet: Array) -> Array:
        """Return memory of the length and type of a packet."""
        found: Array = self._slots[number % AHEAD][: packet.nbytes].view(packet.dtype)
        return found


class Prepared:
    """The MPI side of a schedule for one rank; `start` begins it, `progress` drives it.

    Receives are merged strictly in schedule order, so that equal inputs give equal bits in any
    order of arrival; sends leave in schedule order as soon as their blocks are merged. A packet
    that replaces blocks is received in place once the rank no longer needs the blocks. If that
    might have to wait for a send of the same round, the packet is received elsewhere; otherwise two
    ranks could wait for each other.
    """

    def __init__(
        self,
        schedule: Schedule,
        held: ReducingEndpoint,
        comm: MPI.Intracomm,
        tag: int,
        landing: Landing,
    ) -> None:
        self._schedule, self.held, self._landing = schedule, held, landing
        self._comm, self._tag = comm, tag
        moves = script(schedule, comm.rank)
        self._sends = [self._leaving(move) for move in moves.sends]
        for number, move in enumerate(moves.receives):
            if not self._in_place(move):
                landing.grow(number, held.room(move.first, move.stop, True).nbytes)
        self._grown = landing.grown
        self._receives = [self._coming(n, move) for n, move in enumerate(moves.receives)]
        self._compile()

    def _compile(self) -> None:
        """Prepare the driver; Python needs no preparation."""

    def fits(self, schedule: Schedule, held: Endpoint) -> bool:
        """Tell whether this finished exchange can be started again for the given one."""
        same = schedule is self._schedule and held is self.held
        return same and self._grown == self._landing.grown

    def _in_place(self, move: Receive) -> bool:
        return self.held.views and not move.add and move.sent <= move.earlier

    def _leaving(self, move: Send) -> Leaving:
        packet = self.held.room(move.first, move.stop, not self.held.views)
        request = None
        if self.held.views:
            request = self._comm.Send_init([packet, MPI.BYTE], move.peer, self._tag)
        return Leaving(move, packet.nbytes, request)

    def _coming(self, number: int, move: Receive) -> Coming:
        packet, in_place = self.held.room(move.first, move.stop, move.add), self._in_place(move)
        if not in_place:
            packet = self._landing.like(number, packet)
        request = self._comm.Recv_init([packet, MPI.BYTE], move.peer, self._tag)
        merge = self.held.merging(move.first, move.stop, move.add, packet)
        return Coming(move, packet, in_place, request, merge)

    def start(self) -> None:
        """Begin the exchange again; the previous one is over."""
        self._issued = self._left = 0  # sends
        self._posted = self._merged = 0  # receives
        self._under_way: list[MPI.Request] = []  # sends of packets made in this step
        self.sent = self.moves = 0
        self.coded = 0.0

    def free(self) -> None:
        """Free the MPI requests; no exchange may be under way."""
        for request in [*(s.request for s in self._sends), *(r.request for r in self._receives)]:
            if request is not None:
                request.Free()

    def progress(self) -> bool:
        """Post, send, merge and test until nothing more can be done now; True: all is over."""
        moved = self._post() | self._send()
        while self._merge():  # a merge may allow further receives and sends
            moved = True
            self._post()
            self._send()
        self.moves += moved
        return self._merged == len(self._receives) and self._have_left(len(self._sends))

    def _have_left(self, number: int) -> bool:
        """Tell whether the first `number` sends have left; ask MPI only if the answer matters."""
        while self._left < number:
            if self._left == self._issued:
                return False
            request = self._sends[self._left].request or self._under_way[0]
            if not request.Test():
                return False
            if self._under_way:
                self._under_way.pop(0)
            self._left += 1
        return True

    def _post(self) -> bool:
        before = posted = self._posted
        most = min(len(self._receives), self._merged + AHEAD)
        while posted < most:
            move, _, in_place, request, _ = self._receives[posted]
            if in_place and (self._merged < move.merged or not self._have_left(move.sent)):
                break  # earlier moves still need these blocks
            request.Start()
            posted += 1
        self._posted = posted
        return posted != before

    def _send(self) -> bool:
        before = self._issued
        while self._issued < len(self._sends):
            move, nbytes, request = self._sends[self._issued]
            if move.merged > self._merged:
                break
            if request is not None:
                request.Start()
            else:
                self._take(move)
            self.sent += nbytes
            self._issued += 1
        return self._issued != before

    def _take(self, move: Send) -> MPI.Request:
        """Make a packet and begin to send it."""
        begun = now()
        packet = self.held.take(move.first, move.stop)
        self.coded += now() - begun
        self._under_way.append(self._comm.Isend([packet, MPI.BYTE], move.peer, self._tag))
        return self._under_way[-1]

    def _merge(self) -> bool:
        before = self._merged
        while self._merged < self._posted:
            coming = self._receives[self._merged]
            if not self._have_left(coming.move.sent) or not coming.request.Test():
                break  # the blocks are still being sent, or the packet is not here
            if not coming.in_place:
                self._read(coming)
            self._merged += 1
        return self._merged != before

    def _read(self, coming: Coming) -> None:
        """Merge a packet that is here."""
        begun = now()
        coming.merge()
        self.coded += now() - begun

    def waiting(self) -> list[PendingMove]:
        found = []
        if self._merged < len(self._receives):
            move, packet, *_ = self._receives[self._merged]
            found.append(PendingMove("from", move.peer, packet.nbytes))
        if self._left < self._issued:
            send, nbytes, _ = self._sends[self._left]
            found.append(PendingMove("to", send.peer, nbytes))
        return found
