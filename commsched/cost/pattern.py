"""Who talks to whom in a round, and at which speed: derived once per pattern, used every round."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from commsched.machine import Group, Link, Machine
from commsched.schedule.rounds import Ints, Round

Floats = npt.NDArray[np.float64]
Each = Floats | float  # (m,) one number per move, or one for all of them


@dataclass(frozen=True, eq=False, kw_only=True)
class Pattern:
    """Link parameters of the moves src[i] -> dst[i] of a round.

    A pattern is whole where every rank sends and receives one move; clocks are then kept in the
    order of `src`, so that senders need no indexing, and receivers none but a rotation where all
    moves reach equally far.
    """

    src: Ints  # (m,)
    dst: Ints  # (m,)
    order: Ints | None  # whole: src; None there: ranks ascend
    whole: bool
    turn: int | None  # whole: move i ends where move (i + turn) % m starts; None: no such number
    back: Ints  # whole: move back[i] ends where move i starts
    away: Each  # L + o, s: from a message's start to its first byte at the other end
    overhead: Each  # o, s
    per_byte: Each  # G, s/B, with the share of the NIC
    curves: tuple[tuple[Ints, Link], ...] = ()  # moves whose link has a measured curve

    @cached_property
    def away_back(self) -> Each:
        """Whole: `away` of the move that ends where move i starts."""
        return self.away if isinstance(self.away, float) else self.away[self.back]

    @cached_property
    def even(self) -> tuple[float, float, Link | None] | None:
        """o, G and curve where they are the same for all moves, else None."""
        if not (isinstance(self.overhead, float) and isinstance(self.per_byte, float)):
            return None
        if not self.curves:
            return self.overhead, self.per_byte, None
        (moves, link), *others = self.curves
        one = not others and len(moves) == len(self.src)
        return (self.overhead, self.per_byte, link) if one else None

    @cached_property
    def least(self) -> tuple[float, float]:
        """The least o, s, and the least G, s/B."""
        return float(np.min(self.overhead)), float(np.min(self.per_byte))

    def busy(self, nbytes: Floats) -> Floats:
        """Seconds that each message occupies a port, n G + o: (m,)."""
        seconds = nbytes * self.per_byte
        for moves, link in self.curves:
            # A shared NIC can only slow a message down from its measured curve.
            seconds[moves] = np.maximum(seconds[moves], link.wire(nbytes[moves]))
        seconds += self.overhead
        return seconds


def busy_evenly(even: tuple[float, float, Link | None], nbytes: Floats) -> Floats:
    """`Pattern.busy` for any number of messages, with what `Pattern.even` says of each."""
    overhead, per_byte, link = even
    seconds = nbytes * per_byte
    if link is not None:
        seconds = np.maximum(seconds, link.wire(nbytes))
    return seconds + overhead


class Places:
    """Link parameters of the members of a group on a machine."""

    def __init__(self, machine: Machine, group: Group) -> None:
        self._machine = machine
        self._ranks = np.arange(group.size)
        self._node = np.array(group.nodes)
        self._one_node = bool((self._node == self._node[0]).all())
        self._links = [machine.between]  # and those of nodes that differ
        self._kind = np.zeros(group.size, np.int64)  # of each member's link in `_links`
        for node, link in machine.overrides.items():
            self._kind[self._node == node] = len(self._links)
            self._links.append(link)
        self._port = None if machine.nic is None else ports(machine)[np.array(group.ranks)]
        self._seen: tuple[Ints, Ints | None] = self._ranks, self._ranks

    def pattern(self, rnd: Round) -> Pattern:
        """Derive the speeds of a round's moves, and where they end."""
        src, dst = rnd.src, rnd.dst
        place = self._places(src)
        turn, back = None, src
        if place is not None:
            turn, back = _turn(place[dst])
        order = src if place is not None and place is not self._ranks else None
        shape = (src, dst, order, place is not None, turn, back)
        if self._one_node:
            return _pattern(shape, self._machine.inside)
        inside = self._node[src] == self._node[dst]
        if inside.all():
            return _pattern(shape, self._machine.inside)
        if len(self._links) == 1 and not inside.any():
            return _pattern(shape, self._machine.between, self._shared(src, dst, ~inside))
        return self._mixed(shape, inside)

    def _places(self, src: Ints) -> Ints | None:
        """Where each rank stands in `src`, if every rank does: (p,)."""
        if self._seen[0] is not src:
            place = None
            if len(src) == len(self._ranks):
                place = np.full(len(src), -1)
                place[src] = self._ranks
                if (place == self._ranks).all():
                    place = self._ranks
                elif (place < 0).any():
                    place = None
            self._seen = src, place
        return self._seen[1]

    def _mixed(self, shape: "_Shape", inside: npt.NDArray[np.bool_]) -> Pattern:
        """The slower end of each move decides, and the NIC."""
        src, dst = shape[:2]
        latency, overhead, per_byte = (
            np.where(inside, own, np.maximum(values[self._kind[src]], values[self._kind[dst]]))
            for own, values in zip(_terms(self._machine.inside), self._columns(), strict=True)
        )
        if self._port is not None:
            per_byte = np.maximum(per_byte, self._shared(src, dst, ~inside))
        curves = [(np.flatnonzero(inside), self._machine.inside)]
        for kind, link in enumerate(self._links):
            either = (self._kind[src] == kind) | (self._kind[dst] == kind)
            curves.append((np.flatnonzero(either & ~inside), link))
        found = tuple((moves, link) for moves, link in curves if link.points and len(moves))
        return _made(shape, latency + overhead, overhead, per_byte, found)

    def _columns(self) -> tuple[Floats, Floats, Floats]:
        """L, o and G of each kind of link between nodes."""
        latency, overhead, per_byte = np.array([_terms(link) for link in self._links]).T
        return latency, overhead, per_byte

    def _shared(self, src: Ints, dst: Ints, out: npt.NDArray[np.bool_]) -> Floats:
        """Seconds per byte of each move on its NICs: a fluid fair share among the round's moves.

        Holds for moves of a round that are under way together; ranks that drift apart by more than
        a message's time would share less.
        """
        nic, port = self._machine.nic, self._port
        if nic is None or port is None:
            return np.zeros(len(src))
        count = int(port.max()) + 1
        sending = np.bincount(port[src[out]], minlength=count)[port[src]]
        receiving = np.bincount(port[dst[out]], minlength=count)[port[dst]]
        return np.where(out, nic.per_byte * np.maximum(sending, receiving), 0.0)


_Shape = tuple[Ints, Ints, Ints | None, bool, int | None, Ints]  # the first fields of a Pattern


def _pattern(shape: _Shape, link: Link, shared: Each = 0.0) -> Pattern:
    """A pattern whose moves all use one link class."""
    latency, overhead, per_byte = _terms(link)
    curves = ((np.arange(len(shape[0])), link),) if link.points else ()
    return _made(shape, latency + overhead, overhead, np.maximum(per_byte, shared), curves)


def _made(
    shape: _Shape,
    away: Each,
    overhead: Each,
    per_byte: Each,
    curves: tuple[tuple[Ints, Link], ...],
) -> Pattern:
    src, dst, order, whole, turn, back = shape
    return Pattern(
        src=src,
        dst=dst,
        order=order,
        whole=whole,
        turn=turn,
        back=back,
        away=_one(away),
        overhead=_one(overhead),
        per_byte=_one(per_byte),
        curves=curves,
    )


def _terms(link: Link) -> tuple[float, float, float]:
    """L, o and G; G is 0 where a measured curve stands for it."""
    return link.latency, link.overhead, 0.0 if link.points else link.per_byte


def _one(values: Each) -> Each:
    """One number in place of many equal ones."""
    first = float(np.ravel(values)[0]) if np.size(values) else 0.0
    return first if np.all(values == first) else values


def _turn(to: Ints) -> tuple[int | None, Ints]:
    """Whether every move reaches equally far, and which move ends at each place. to: (m,)."""
    count, turn = len(to), int(to[0])
    back = np.empty_like(to)
    back[to] = np.arange(count)
    rotates = to[-1] == (turn or count) - 1 and bool((np.diff(to) % count == 1).all())
    return (turn, back) if rotates else (None, back)


def ports(machine: Machine) -> Ints:
    """The network port of every rank of a machine: a node's ranks divide its ports evenly."""
    assert machine.nic is not None
    node = np.array(machine.node_of_rank)
    order = np.argsort(node, kind="stable")
    ranks = np.bincount(node)
    place = np.empty_like(node)
    place[order] = np.arange(len(node)) - np.repeat(np.cumsum(ranks) - ranks, ranks)
    return node * machine.nic.per_node + place * machine.nic.per_node // ranks[node]
