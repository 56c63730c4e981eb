"""Terms of the closed forms: seconds of a message, bytes of a share, links of a group."""

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost.wire import Wire
from commsched.exchange.payload import Payload
from commsched.machine.model import CodecRate, Group, Machine
from commsched.schedule.rounds import Schedule


class Size(NamedTuple):
    """Sizes of messages: wire [B], and raw [B] of float32 values that the codec reads or writes."""

    wire: Floats
    raw: float


@dataclass(frozen=True, slots=True)
class Coding:
    """Seconds at one end of a message, as in `play`."""

    rate: CodecRate

    def code(self, size: Size) -> float:
        """Seconds to encode a message."""
        return self.rate.fixed + size.raw * self.rate.encode if self.rate.encode else 0.0

    def merge(self, size: Size, add: bool) -> Floats:
        """Seconds to add or decode what arrived."""
        rate = self.rate
        if add:
            return rate.per_add + size.wire * rate.add
        decode = rate.per_decode + size.raw * rate.decode if rate.decode else 0.0
        return np.full_like(size.wire, decode)


class Load:
    """Mean bytes of messages that carry a share of a payload."""

    def __init__(self, schedule: Schedule, payload: Payload) -> None:
        self._payload = payload
        self._first, self._stop = np.array([0]), np.array([schedule.blocks])

    def size(self, share: float, merged: Ints) -> Size:
        """Return messages of `share` of all blocks that sum `merged` ranks, (rounds,).

        The expected bytes of a run are a header and a part that adds up over runs; with coded
        indices this is approximate.
        """
        if self._payload.sizes is not None:
            return Size(np.full(len(merged), self._payload.packets * share), 0.0)
        header = self._payload.wire(self._first, self._first, merged)
        whole = self._payload.wire(self._first, self._stop, merged)
        wire = np.broadcast_to(header + (whole - header) * share, merged.shape)
        return Size(wire, float(self._payload.raw(self._first, self._stop)[0]) * share)


@dataclass(frozen=True, slots=True)
class Circle:
    """The hops of a circle of ranks: how many of each kind, and their links."""

    counts: tuple[int, ...]
    wires: tuple[Wire, ...]
    together: int  # number of adjacent hops of the last kind

    def headstart(self, hops: list[float], missing: int) -> float:
        """Return the mean hop's loss of time if a circle leaves out the `missing` fastest hops.

        A reduce-scatter makes one hop less than a full circle, an all-reduce two less than two.
        """
        last = min(missing, self.together)
        others = hops[:-1] if self.together else hops
        fastest = last * hops[-1] + (missing - last) * min(others)
        return float(np.average(hops, weights=self.counts)) - fastest / missing


class Site:
    """The position of a group on a machine: the links of its levels, in the order of its nodes."""

    def __init__(self, machine: Machine, group: Group, rate: CodecRate) -> None:
        self.coding = Coding(rate)
        self.ranks = group.size
        self.nodes = len(group.members)
        self._counts = {len(members) for members in group.members}
        self.lanes = max(self._counts)  # on the fullest node
        self.inside = Wire.slowest([machine.inside])
        self._nic = machine.nic
        ports = 1 if machine.nic is None else min(machine.nic.per_node, self.lanes)
        self.crowd = -(-self.lanes // ports)  # ranks that share a port
        nodes = (group.nodes[members[0]] for members in group.members)
        self._ends = [machine.overrides.get(node, machine.between) for node in nodes]
        self._links = tuple(set(self._ends))

    def between(self, flows: int) -> Wire:
        """Return the slowest link between nodes while `flows` messages share each port."""
        return Wire.slowest(self._links, self._share(flows))

    def apart(self, distance: int, flows: int) -> Wire:
        """Return the slowest link at this distance if at most `flows` exchanges share a port.

        Exchanges stay inside nodes that aligned teams of 2 * `distance` ranks fill.
        """
        if self.nodes == 1 or all(count % (2 * distance) == 0 for count in self._counts):
            return self.inside
        return self.between(min(flows, distance, self.crowd))

    def circle(self) -> Circle:
        """Return the links of a circle of all ranks that enters each node once."""
        if self.nodes == 1:
            return Circle((self.ranks,), (self.inside,), 0)
        across = self._across(1)
        if self.lanes == 1:
            return across
        counts = (*across.counts, self.ranks - self.nodes)
        return Circle(counts, (*across.wires, self.inside), self.lanes - 1)

    def lane(self) -> Circle:
        """Return the links of a circle through one rank per node; there is a circle per lane."""
        return self._across(self.crowd) if self.nodes > 1 else Circle((1,), (self.inside,), 0)

    def _across(self, flows: int) -> Circle:
        ends = zip(self._ends, self._ends[1:] + self._ends[:1], strict=True)
        kinds = Counter(map(frozenset, ends))
        share = self._share(flows)
        wires = tuple(Wire.slowest(links, share) for links in kinds)
        return Circle(tuple(kinds.values()), wires, 0)

    def _share(self, flows: int) -> float:
        return 0.0 if self._nic is None else self._nic.per_byte * flows
