"""Terms of the closed forms: seconds of a message, bytes of a share, links of a group."""

from collections import Counter
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from commsched.arrays import Floats, Ints
from commsched.cost.pattern import Places
from commsched.cost.wire import Wire
from commsched.exchange.payload import Payload
from commsched.machine.model import CodecRate, Group, Link, Machine
from commsched.schedule.circles import Circles
from commsched.schedule.levels import axis_rings, torus_table
from commsched.schedule.rounds import Schedule

ALL = 16  # distances that count each; a greater one stands for those up to the next,
STEP = 1.5  # which is this many times as far


class MessageSize(NamedTuple):
    """Sizes of messages: wire [B], and raw [B] of float32 values that the codec reads or writes."""

    wire: Floats
    raw: float


@dataclass(frozen=True, slots=True)
class Coding:
    """Seconds at one end of a message, as in `play`."""

    rate: CodecRate

    def code(self, size: MessageSize) -> float:
        """Return the seconds to encode a message."""
        return self.rate.fixed + size.raw * self.rate.encode if self.rate.encode else 0.0

    def merge(self, size: MessageSize, add: bool) -> Floats:
        """Return the seconds to add or decode what arrived."""
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

    def size(self, share: float, merged: Ints) -> MessageSize:
        """Return messages of `share` of all blocks that sum `merged` ranks, (rounds,).

        The expected bytes of a run are a header and a part that adds up over runs; with coded
        indices this is approximate.
        """
        if self._payload.sizes is not None:
            return MessageSize(np.full(len(merged), self._payload.packets * share), 0.0)
        header = self._payload.wire(self._first, self._first, merged)
        whole = self._payload.wire(self._first, self._stop, merged)
        wire = np.broadcast_to(header + (whole - header) * share, merged.shape)
        return MessageSize(wire, float(self._payload.raw(self._first, self._stop)[0]) * share)


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


def sampled(places: int) -> list[tuple[int, int]]:
    """Return some distances below `places`, each with how many it stands for, nearest last.

    A distance and what it lacks to a full circle are alike.
    """
    found, k, half = [], 1, (places - 1) // 2
    while k <= half:
        after = k + 1 if k < ALL else min(half + 1, int(k * STEP))
        found.append((2 * (after - k), k))
        k = after
    if places % 2 == 0:
        found.append((1, places // 2))
    return found[::-1]


S = TypeVar("S", bound="Site")
P = ParamSpec("P")
T = TypeVar("T")


def remembered(derive: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Derive what a method of a site returns once per arguments, for all codecs."""

    def found(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = derive, args
        if key not in self.known:
            self.known[key] = derive(self, *args, **kwargs)
        answer: T = self.known[key]
        return answer

    return wraps(derive)(found)


class _End(NamedTuple):
    """The end of a link at a node."""

    link: Link
    port: float  # s/B; 0: not shared

    @classmethod
    def of(cls, machine: Machine, node: int) -> "_End":
        own, nic = machine.overrides.get(node), machine.nic
        if nic is None:
            return cls(own or machine.between, 0.0)
        return cls(own or machine.between, nic.of(own) if own else nic.per_byte)


def _slowest(ends: Collection[_End], flows: int) -> Wire:
    """Return the slowest of some links while `flows` messages share each port."""
    return Wire.slowest([end.link for end in ends], flows * max(end.port for end in ends))


class Site:
    """The position of a group on a machine: the links of its levels, in the order of its nodes."""

    coding: Coding

    def __init__(self, machine: Machine, group: Group) -> None:
        self.known: dict[object, Any] = {}
        self._places = Places(machine, group)
        self.group = group
        self.ranks = group.size
        self.nodes = len(group.members)
        self._counts = {len(members) for members in group.members}
        self.lanes = max(self._counts)  # on the fullest node
        self.inside = Wire.slowest([machine.inside])
        ports = 1 if machine.nic is None else min(machine.nic.per_node, self.lanes)
        self.crowd = -(-self.lanes // ports)  # ranks that share a port
        nodes = (group.nodes[members[0]] for members in group.members)
        self._ends = [_End.of(machine, node) for node in nodes]

    def coded(self, rate: CodecRate) -> "Site":
        """Return the site as a codec sees it."""
        found = copy(self)
        found.coding = Coding(rate)
        return found

    def between(self, flows: int) -> Wire:
        """Return the slowest link between nodes while `flows` messages share each port."""
        return _slowest(set(self._ends), flows)

    @remembered
    def apart(self, distance: int, flows: int) -> Wire:
        """Return the slowest link at this distance if at most `flows` exchanges share a port.

        Exchanges stay inside nodes that aligned teams of 2 * `distance` ranks fill.
        """
        if self.nodes == 1 or all(count % (2 * distance) == 0 for count in self._counts):
            return self.inside
        return self.between(min(flows, distance, self.crowd))

    @remembered
    def circle(self) -> Circle:
        """Return the links of a circle of all ranks that enters each node once."""
        if self.nodes == 1:
            return Circle((self.ranks,), (self.inside,), 0)
        across = self._across(1)
        if self.lanes == 1:
            return across
        counts = (*across.counts, self.ranks - self.nodes)
        return Circle(counts, (*across.wires, self.inside), self.lanes - 1)

    @remembered
    def lane(self) -> Circle:
        """Return the links of a circle through one rank per node; there is a circle per lane."""
        return self._across(self.crowd) if self.nodes > 1 else Circle((1,), (self.inside,), 0)

    @remembered
    def mates(self, ahead: int) -> Wire:
        """Return the slowest link to the rank `ahead` places on in the own node."""
        return self.inside

    @remembered
    def peers(self, ahead: int) -> Wire:
        """Return the slowest link to the rank of equal lane `ahead` nodes on."""
        return self.between(self.crowd)

    @remembered
    def rings(self) -> list[tuple[int, Circle]]:
        """Return the circles of `nested`, inside out, each with its number of ranks."""
        return [(self.lanes, Circle((self.lanes,), (self.inside,), 0)), (self.nodes, self.lane())]

    @remembered
    def axes(self) -> list[tuple[int, Circle]]:
        """Return the circles along each direction of a torus, each with its number of ranks."""
        return [(on.places, self.ring(on)) for on in axis_rings(torus_table(self.group))]

    def ring(self, on: Circles) -> Circle:
        """Return the links of circles that go on side by side: on average as many of each kind."""
        kinds = self.wire(on.src, on.dst).kinds(len(on.src))
        return Circle(tuple(n for n, _ in kinds), tuple(wire for _, wire in kinds), 0)

    def wire(self, src: Ints, dst: Ints) -> Wire:
        """Return the links of the messages of one round."""
        return self._places.wire(src, dst)

    @remembered
    def crossings(self) -> list[tuple[int, float, Wire]]:
        """Return a rotation's rounds: their number, how often data meets a crossing, its link.

        In round k, and in the k-th from the end, k of K ranks leave a node, and all where k >= K;
        of those in a chain of messages k + 1 leave it, because slow chains decide (fitted to
        `play`).
        """
        p, lanes = self.ranks, self.lanes
        if self.nodes == 1:
            return [(p - 1, 1.0, self.inside)]
        few = range(1, min(lanes, (p + 1) // 2))
        found = [(2, min(1.0, (k + 1) / lanes), self.between(min(k, self.crowd))) for k in few]
        return [*found, (p - 1 - 2 * len(few), 1.0, self.between(self.crowd))]

    def _across(self, flows: int) -> Circle:
        ends = zip(self._ends, self._ends[1:] + self._ends[:1], strict=True)
        kinds = Counter(map(frozenset, ends))
        wires = tuple(_slowest(both, flows) for both in kinds)
        return Circle(tuple(kinds.values()), wires, 0)
