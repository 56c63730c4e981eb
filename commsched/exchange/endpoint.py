"""A rank's end of an exchange: the meaning of sending, adding and replacing a block."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import State
from commsched.errors import CommschedError
from commsched.exchange.lists import joint
from commsched.exchange.method import Ends, Phase, Pieces
from commsched.exchange.payload import Payload
from commsched.kernels.finite_check import cleared
from commsched.kernels.merge import Listed, merged
from commsched.kernels.modules import beside, module_of, on_host
from commsched.schedule.rounds import Goal, Schedule


class Endpoint(Protocol):
    """One rank's side of one exchange; `run` blocks are [first, stop)."""

    def take(self, first: int, stop: int) -> Array:
        """Return the packet to send now; it may be a view of the data here."""

    def add(self, first: int, stop: int, packet: Array) -> None:
        """Add a received packet to the rank's blocks."""

    def put(self, first: int, stop: int, packet: Array) -> None:
        """Replace the rank's blocks by a received packet."""

    def landing(self, first: int, stop: int, add: bool) -> Array | None:
        """Return where to receive: in place, a fresh packet, or None if the size is unknown."""
        return None

    def most(self, first: int, stop: int) -> int | None:
        """Return an upper bound of a packet's bytes, or None; for packets of unknown size."""
        return None

    def result(self) -> Array:
        """Return the result of the exchange, see `Phase.give`."""


class ReducingEndpoint(Endpoint):
    """A bucket that is summed block by block in place (all-reduce, reduce-scatter).

    If the codec is lossy, a rank replaces the values that it sends by the decoded packet; at the
    end it does so for sums that it never sent, so that all ranks end with equal bits. If the state
    has "lost", (n,) float32, the difference is added to "lost": the rank that rounds or drops
    values keeps the loss, also for sums that it merged.
    """

    def __init__(self, values: Array, payload: Payload, state: State, own: slice | None) -> None:
        assert payload.cuts is not None
        self._values = values
        self._cuts: list[int] = payload.cuts.tolist()
        self._codec = payload.codec
        self._state = state
        self._own = own
        self._added = np.zeros(len(self._cuts) - 1, np.bool_)  # blocks: added to since coded
        self.payload = payload

    @property
    def fixed(self) -> bool:
        """Tell whether the bytes of packets are known beforehand."""
        return self._codec.fixed

    @property
    def views(self) -> bool:
        """Tell whether packets are views of the bucket, sent from it and received in it."""
        return self._codec.encode_traffic == 0.0 == self._codec.decode_traffic

    def again(self, values: Array, payload: Payload) -> bool:
        """Prepare for the next exchange if its memory and packets are the same; tell whether."""
        self._added[:] = False
        return values is self._values and payload is self.payload

    def _run(self, first: int, stop: int) -> Array:
        return self._values[self._cuts[first] : self._cuts[stop]]

    def take(self, first: int, stop: int) -> Array:
        run = self._run(first, stop)
        start = self._cuts[first]
        packet = self._codec.encode(run, self._state, start)
        self._added[first:stop] = False
        if not self._codec.lossless:
            self._settle(packet, run, start)
        return packet

    def _settle(self, packet: Array, run: Array, start: int) -> None:
        """Replace a run by its values in the packet; NaN and infinity are sent, never kept."""
        lost = self._state.get("lost")
        if lost is None:
            self._codec.decode(packet, run)
            return
        kept = run.copy()
        self._codec.decode(packet, run)
        with np.errstate(over="ignore", invalid="ignore"):
            kept -= run
        cleared(kept)
        lost[start : start + len(run)] += kept

    def add(self, first: int, stop: int, packet: Array) -> None:
        self._codec.add(packet, self._run(first, stop))
        self._added[first:stop] = True

    def put(self, first: int, stop: int, packet: Array) -> None:
        run = self._run(first, stop)
        self._added[first:stop] = False
        if packet is not run:
            self._codec.decode(packet, run)

    def merging(self, first: int, stop: int, add: bool, packet: Array) -> Callable[[], None]:
        """Return a function that merges the packet received in this memory, for all exchanges."""
        if add and self.views:
            return partial(self._codec.add, packet, self._run(first, stop))
        return partial(self.add if add else self.put, first, stop, packet)

    def plain_sum(
        self, first: int, stop: int, add: bool, packet: Array
    ) -> tuple[Array, Array] | None:
        """Return float32 (n,) `came` and `into` if `merging` is just into += came, or None."""
        return self._codec.plain_sum(packet, self._run(first, stop)) if add and self.views else None

    def landing(self, first: int, stop: int, add: bool) -> Array | None:
        return self.room(first, stop, add) if self._codec.fixed else None

    def room(self, first: int, stop: int, add: bool) -> Array:
        """Return where to receive a packet of known size: in place, or a fresh packet."""
        if not add and self._codec.decode_traffic == 0.0:
            return self._run(first, stop)
        return self._codec.packet(self._cuts[stop] - self._cuts[first])

    def result(self) -> Array:
        if self._own is not None:
            return self._run(self._own.start, self._own.stop)
        if not self._codec.lossless and self._added.any():
            edges = np.flatnonzero(np.diff(self._added, prepend=False, append=False))
            for first, stop in edges.reshape(-1, 2).tolist():
                self.take(first, stop)
        return self._values


class ListEndpoint(Endpoint):
    """A bucket as a list of non-zeros that is summed block by block; a block is a list, too."""

    def __init__(self, found: Listed, payload: Payload, own: slice | None) -> None:
        assert payload.cuts is not None
        self._cuts: list[int] = payload.cuts.tolist()
        self._codec = payload.codec
        self._blocks = [found.part(start, stop) for start, stop in pairwise(self._cuts)]
        self._own = own

    def _run(self, first: int, stop: int) -> Listed:
        start = self._cuts[first]
        parts = zip(self._blocks[first:stop], self._cuts[first:stop], strict=True)
        return joint([(block, at - start) for block, at in parts])

    def take(self, first: int, stop: int) -> Array:
        return self._codec.pack(self._run(first, stop), self._cuts[stop] - self._cuts[first])

    def add(self, first: int, stop: int, packet: Array) -> None:
        self._read(first, stop, packet, adds=True)

    def put(self, first: int, stop: int, packet: Array) -> None:
        self._read(first, stop, packet, adds=False)

    def _read(self, first: int, stop: int, packet: Array, adds: bool) -> None:
        start = self._cuts[first]
        came = self._codec.listed(packet, self._cuts[stop] - start)
        for block in range(first, stop):
            low, high = self._cuts[block], self._cuts[block + 1]
            part = came.part(low - start, high - start)
            if adds:
                part = merged([self._blocks[block], part], high - low)
            self._blocks[block] = part

    def result(self) -> Listed:
        own = self._own or slice(0, len(self._blocks))
        return self._run(own.start, own.stop)


class GatheringEndpoint(Endpoint):
    """Packets that are only forwarded (all-gather, all-to-all), block by block."""

    def __init__(self, packets: dict[int, Array], wanted: list[int]) -> None:
        self._packets = packets
        self._wanted = wanted

    def take(self, first: int, stop: int) -> Array:
        if stop - first == 1:
            return self._packets[first]
        packets = [self._packets[block].view(np.uint8) for block in range(first, stop)]
        lengths = np.array([len(p) for p in packets], np.int64).view(np.uint8)
        module = module_of(packets[0])
        return module.concatenate([beside(lengths, packets[0]), *packets])

    def add(self, first: int, stop: int, packet: Array) -> None:
        raise AssertionError("a gathering schedule does not add")

    def put(self, first: int, stop: int, packet: Array) -> None:
        if stop - first == 1:
            self._packets[first] = packet
            return
        count = stop - first
        size = len(packet)
        head = on_host(packet[: 8 * count]) if size >= 8 * count else np.array([-1])
        lengths = head.view(np.int64)
        ends = 8 * count + np.cumsum(lengths)
        if (lengths < 0).any() or ends[-1] != size:
            raise CommschedError(f"a message of {size} B does not hold {count} packets")
        for block, end, length in zip(range(first, stop), ends, lengths, strict=True):
            self._packets[block] = packet[end - length : end]

    def result(self) -> Array:
        return [self._packets[block] for block in self._wanted]


class StreamingEndpoint(Endpoint):
    """Packets that are encoded before their first send and read on arrival; some are added."""

    def __init__(self, pieces: Pieces, state: State) -> None:
        self._pieces = pieces
        self._state = state
        self._made: dict[tuple[int, int], Array] = {}  # packets, by run

    def take(self, first: int, stop: int) -> Array:
        if (first, stop) not in self._made:
            self._made[first, stop] = self._pieces.make(self._state, first, stop)
        return self._made[first, stop]

    def add(self, first: int, stop: int, packet: Array) -> None:
        self._made.pop((first, stop), None)  # the next packet includes both
        self._pieces.read(self._state, first, stop, packet)

    def put(self, first: int, stop: int, packet: Array) -> None:
        self._pieces.read(self._state, first, stop, packet)

    def most(self, first: int, stop: int) -> int | None:
        return self._pieces.most(first, stop)

    def result(self) -> Array:
        return []


def open_endpoint(phase: Phase, state: State, before: Endpoint | None = None) -> Endpoint:
    """Start an exchange: run the phase's `take` on the state of one rank.

    before: the endpoint of this state's last exchange, which is used again if it fits.
    """
    schedule, payload = phase.schedule, phase.payload
    rank = int(state["rank"])
    taken = phase.take(state)
    if "list" in state:
        before = None
    if isinstance(before, ReducingEndpoint) and before.again(taken, payload):
        return before
    if phase.pieces is not None:
        return StreamingEndpoint(phase.pieces, state)
    if schedule.goal in (Goal.ALL_REDUCE, Goal.BROADCAST):
        return _reducing(taken, payload, state, None)
    brings, takes = (phase.ends or partial(ends, schedule))(rank)
    if schedule.goal is Goal.REDUCE_SCATTER:
        return _reducing(taken, payload, state, slice(takes[0], takes[-1] + 1))
    packets = [taken] if schedule.goal is Goal.ALL_GATHER else taken
    return GatheringEndpoint(dict(zip(brings, packets, strict=True)), takes)


def _reducing(taken: Array, payload: Payload, state: State, own: slice | None) -> Endpoint:
    """Return the endpoint that sums a list if the method takes lists, else an array in place."""
    if "list" in state:
        return ListEndpoint(Listed(*state["list"]), payload, own)
    return ReducingEndpoint(taken, payload, state, own)


def ends(schedule: Schedule, rank: int) -> Ends:
    """Return the blocks that a rank sends and receives if all ranks exchange together."""
    ranks = schedule.ranks
    if schedule.goal is Goal.ALL_TO_ALL:
        return Ends(
            [rank * ranks + to for to in range(ranks)],
            [source * ranks + rank for source in range(ranks)],
        )
    assert schedule.owner is not None
    if schedule.goal is Goal.REDUCE_SCATTER:
        return Ends([], np.flatnonzero(schedule.owner == rank).tolist())
    return Ends([rank], list(range(ranks)))
