"""How packets get from their memory to MPI and back: what every path offers to an exchange."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mpi4py import MPI

from commsched.arrays import Array, Floats
from commsched.exchange.endpoint import Endpoint
from commsched.run.wire.device import Event
from commsched.schedule.rounds import Schedule


class PendingMove(NamedTuple):
    """Whom an exchange waits for, and for how many bytes."""

    direction: str  # "from" or "to" a peer, "among" all in a native sum
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
        """Do what can be done now without waiting; True once the exchange is over."""

    def waiting(self) -> list[PendingMove]:
        """Return the moves that it waits for."""


@runtime_checkable
class Repeated(Exchange, Protocol):
    """An exchange that is compiled once and started in every step."""

    def fits(self, schedule: Schedule, held: Endpoint) -> bool:
        """Tell whether it can be started for an exchange, once it is over."""

    def start(self) -> None:
        """Begin the exchange once more; the one before is over."""

    def free(self) -> None:
        """Give the requests back to MPI; no exchange may be under way."""


class Unlocked:
    """An exchange that goes on while other threads hold the interpreter's lock.

    No abstract class: to ask whether an object is of one would delay the shortest exchanges.
    """

    moves: int

    def wait(self, pace: Floats, waited: float, changed: Array) -> bool:
        """Drive the exchange until something has changed for the caller; True: it is over.

        pace (5,): s of patience at most; s of polling without sleeps after the last event; a
        sleep's share of the s since then, and its shortest and longest s. waited: s since the last
        event. changed (1,) uint8: not 0 once the caller has something else to do.
        """
        raise NotImplementedError


class Moving(Protocol):
    """A packet under way."""

    packet: Array  # of one of unknown size once it is here

    def done(self) -> bool:
        """Do what can be done now; True once the packet has left, or is here."""


class Lane(Protocol):
    """The messages of one exchange, between the memory of its packets and MPI."""

    def send(self, packet: Array, peer: int) -> Moving:
        """Begin to send a packet, (n,), which must not change until the send is over."""

    def receive(self, packet: Array, peer: int) -> Moving:
        """Begin to receive a packet of known size into (n,), or into another array."""

    def bounded(self, most: int, peer: int) -> Moving | None:
        """Begin to receive a packet of at most `most` bytes; None if it must be probed for."""

    def probe(self, peer: int) -> Moving:
        """Begin to receive a packet of unknown size."""

    def progress(self) -> bool:
        """Move on all packets under way; True if something happened."""

    def quiet(self, first: Sequence[Moving]) -> bool:
        """Tell whether one look shows that nothing happened to these packets; False: ask each."""

    def mark(self) -> Event:
        """Return the end of all work queued so far on the device that holds the packets."""


class Path(Protocol):
    """How packets get from their memory to MPI and back."""

    whole: int  # B from which a packet goes in pieces; 0 if MPI is not given the packet's memory

    def join(self, comm: MPI.Intracomm) -> None:
        """Get ready for native sums among these ranks; all of them call it."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> Lane:
        """Return a lane for one exchange."""

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        """Begin the MPI library's own all-reduce."""
