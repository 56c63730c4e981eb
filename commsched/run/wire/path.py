"""The interfaces between exchanges and the paths by which packets reach MPI."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from mpi4py import MPI

from commsched.arrays import Array, Floats
from commsched.exchange.endpoint import Endpoint
from commsched.run.wire.device import Event
from commsched.schedule.rounds import Schedule


class PendingMove(NamedTuple):
    """A move that an exchange waits for: peer and bytes."""

    direction: str  # "from" or "to" a peer, "among" all in a native sum
    peer: int  # member of the group
    nbytes: int | None  # None: not known yet


class Exchange(Protocol):
    """An exchange under way."""

    sent: int  # B that this rank has passed to MPI
    moves: int  # grows with every progress

    @property
    def coded(self) -> float:
        """Seconds of encoding, adding and decoding, after the end; may wait for a device."""

    def progress(self) -> bool:
        """Make progress without waiting; return True once the exchange is over."""

    def waiting(self) -> list[PendingMove]:
        """Return the moves that the exchange waits for."""


@runtime_checkable
class Repeated(Exchange, Protocol):
    """An exchange that is compiled once and started in every step."""

    def fits(self, schedule: Schedule, held: Endpoint) -> bool:
        """Tell whether this finished exchange can be started again for the given one."""

    def start(self) -> None:
        """Begin the exchange again; the previous one is over."""

    def free(self) -> None:
        """Free the MPI requests; no exchange may be under way."""


class Unlocked:
    """An exchange that progresses while other threads hold the interpreter's lock.

    This is not an abstract class, whose isinstance checks would delay the shortest exchanges.
    """

    moves: int

    def wait(self, pace: Floats, waited: float, changed: Array) -> bool:
        """Drive the exchange until it is over (True), or until the caller has something to do.

        pace (5,): most s of this call; s of polling without sleeps after the last event; a sleep's
        share of the s since that event, and its shortest and longest s. waited: s since the last
        event. changed (1,) uint8: not 0 once the caller has something else to do.
        """
        raise NotImplementedError


class Moving(Protocol):
    """A packet under way."""

    packet: Array  # after arrival, if the size was unknown

    def done(self) -> bool:
        """Make progress; return True once the packet has left, or has arrived."""


class Lane(Protocol):
    """The messages of one exchange, between the memory of its packets and MPI."""

    def send(self, packet: Array, peer: int) -> Moving:
        """Begin to send a packet, (n,), which must not change until the send is over."""

    def receive(self, packet: Array, peer: int) -> Moving:
        """Begin to receive a packet of known size into (n,), or into another array."""

    def bounded(self, most: int, peer: int) -> Moving | None:
        """Begin to receive a packet of at most `most` bytes; None: it must be probed for."""

    def probe(self, peer: int) -> Moving:
        """Begin to receive a packet of unknown size."""

    def progress(self) -> bool:
        """Progress all packets under way; return True if something happened."""

    def quiet(self, first: Sequence[Moving]) -> bool:
        """Tell whether one test shows that nothing happened to these packets; False: test each."""

    def mark(self) -> Event:
        """Return the end of all work queued so far on the device that holds the packets."""


class Path(Protocol):
    """The interface of a path by which packets get from their memory to MPI and back."""

    whole: int  # B from which a packet goes in pieces; 0: MPI does not access the packet's memory

    def join(self, comm: MPI.Intracomm) -> None:
        """Prepare native sums among these ranks; all of them call it."""

    def lane(self, comm: MPI.Intracomm, tag: int) -> Lane:
        """Return a lane for one exchange."""

    def native(self, held: Endpoint, comm: MPI.Intracomm) -> Exchange:
        """Begin the MPI library's own all-reduce."""
