"""Senders, receivers and speeds of a round: derived once per pattern, used in every round."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple, TypeVar

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.cost.level_path import Climb
from commsched.cost.wire import Each, Wire, one, terms
from commsched.machine.model import Group, Link, Machine
from commsched.schedule.rounds import Round


class PatternShape(NamedTuple):
    """Senders and receivers of a round.

    A pattern is whole if every rank sends and receives one move. Clocks are then kept in the order
    of `src`, so that senders need no indexing. Receivers need only a rotation if all moves reach
    equally far.
    """

    src: Ints  # (m,)
    dst: Ints  # (m,)
    whole: bool
    order: Ints | None  # whole: src; None there: ranks ascend
    turn: int | None  # whole: move i ends where move (i + turn) % m starts; None: not so
    back: Ints  # whole: move back[i] ends where move i starts


@dataclass(frozen=True, eq=False)
class Pattern:
    """Link parameters of the moves of a round."""

    shape: PatternShape
    wire: Wire
    # Only if not whole:
    burst: Each = 0.0  # s, of bytes that leave at once after a rest
    turn: float = 0.0  # B of a message that leave before another rank's turn at the port
    behind: tuple[Each, Each] = (
        0.0,
        0.0,
    )  # s/B of these bytes, for messages that come later: src, dst

    @cached_property
    def away_back(self) -> Each:
        """Return `away` of the move that ends where move i starts, if the pattern is whole."""
        away = self.wire.away
        return away if isinstance(away, float) else away[..., self.shape.back]


def first_byte(leaves: Floats, away: Each, port: Floats) -> Floats:
    """Return when a message's first byte enters a receive port that is busy until `port`."""
    return np.maximum(leaves + away, port)


GROUPS = 4  # a machine keeps what was derived for this many
PATTERNS = 64  # cached patterns of the same arrays
MOVES = 2**19  # in the cached patterns of equal arrays, about 40 MB


T = TypeVar("T")


def once(machine: Machine, group: Group, derive: Callable[[Machine, Group], T]) -> T:
    """Return the result of `derive` for a machine and a group; cache that of the last groups."""
    key = derive, group
    if key not in machine.derived:
        machine.derived[key] = derive(machine, group)
        kept = [k for k in machine.derived if isinstance(k, tuple) and k[0] is derive]
        for old in kept[:-GROUPS]:
            machine.derived.pop(old, None)
    found: T = machine.derived[key]  # type: ignore[assignment]
    return found


class Places:
    """Link parameters of the members of a group on a machine."""

    def __init__(self, machine: Machine, group: Group) -> None:
        self._machine = machine
        self._ranks = np.arange(group.size)
        self._around = np.tile(self._ranks, 2)
        self._node = np.array(group.nodes)
        self._one_node = bool((self._node == self._node[0]).all())
        self._links = [machine.between]  # and the links of nodes that differ
        self._kind = np.zeros(group.size, np.int64)  # of each member's link in `_links`
        for node, link in machine.overrides.items():
            self._kind[self._node == node] = len(self._links)
            self._links.append(link)
        self._port = None if machine.nic is None else ports(machine)[np.array(group.ranks)]
        self._seen: tuple[Ints, Ints | None] = self._ranks, self._ranks
        # Keys are ids of arrays, which the values keep alive.
        self._patterns: dict[tuple[int, int], tuple[Ints, Ints, Pattern]] = {}
        self._alike: dict[tuple[bytes, bytes], Pattern] = {}
        self._moves = 0  # in these
        self._by_turns = by_turns(machine)
        self._climb = Climb(machine, group, self._port) if machine.levels else None
        links = (machine.inside, *self._links)
        # Whether two links tell all patterns: of messages inside nodes, and of others.
        self.plain = (
            self._climb is None
            and self._port is None
            and len(self._links) == 1
            and not any(link.points for link in links)
        )
        self.links = terms(machine.inside), terms(machine.between)

    @classmethod
    def of(cls, machine: Machine, group: Group) -> "Places":
        """Return the places of a group that was priced on the machine lately, or new ones."""
        return once(machine, group, cls)

    def pattern(self, rnd: Round) -> Pattern:
        """Return the speeds of a round's moves, and where they end; cached for the same arrays."""
        key = id(rnd.src), id(rnd.dst)
        found = self._patterns.get(key)
        if found is None:
            if len(self._patterns) == PATTERNS:
                self._patterns.clear()
            found = self._patterns[key] = rnd.src, rnd.dst, self._equal(rnd)
        return found[2]

    def _equal(self, rnd: Round) -> Pattern:
        """Return the pattern of equal arrays, which a schedule makes anew for each play."""
        key = rnd.src.tobytes(), rnd.dst.tobytes()
        found = self._alike.get(key)
        if found is None:
            found = self._derived(rnd)
            self._moves += len(rnd.src)
            if self._moves > MOVES:
                self._alike.clear()
                self._moves = len(rnd.src)
            self._alike[key] = found
        return found

    def inside(self, src: Ints, dst: Ints) -> Bools:
        """Tell which messages stay inside a node."""
        found: Bools = self._node[src] == self._node[dst]
        return found

    def wire(self, src: Ints, dst: Ints) -> Wire:
        """Return the seconds of the messages of one round, from members to members."""
        if self._climb is not None:
            return self._climb.wire(src, dst)
        blocks = np.zeros_like(src)
        return self._derived(Round(src, dst, blocks, blocks, False, 1)).wire

    def _derived(self, rnd: Round) -> Pattern:
        if self._climb is not None:
            return self._climbing(rnd, self._climb)
        if self._one_node:
            return _uniform(self._shape(rnd.src, rnd.dst), self._machine.inside)
        inside = self.inside(rnd.src, rnd.dst)
        if self._by_turns and not inside.all():
            shape = PatternShape(rnd.src, rnd.dst, False, None, None, rnd.src)
            return self._turns(self._mixed(shape, inside), ~inside)
        shape = self._shape(rnd.src, rnd.dst)
        if inside.all():
            return _uniform(shape, self._machine.inside)
        if len(self._links) == 1 and not inside.any():
            return _uniform(shape, self._machine.between, self._shared(shape, ~inside))
        return self._mixed(shape, inside)

    def _climbing(self, rnd: Round, climb: Climb) -> Pattern:
        """Price the moves of a machine with more levels than nodes."""
        wire = climb.wire(rnd.src, rnd.dst)
        out = self._node[rnd.src] != self._node[rnd.dst]
        if self._by_turns and out.any():
            shape = PatternShape(rnd.src, rnd.dst, False, None, None, rnd.src)
            return self._turns(Pattern(shape, wire), out)
        return Pattern(self._shape(rnd.src, rnd.dst), wire.short())

    def _shape(self, src: Ints, dst: Ints) -> PatternShape:
        place = self._places(src)
        if place is None:
            return PatternShape(src, dst, False, None, None, src)
        return PatternShape(
            src, dst, True, None if place is self._ranks else src, *self._turn(place[dst])
        )

    def _places(self, src: Ints) -> Ints | None:
        """Return where each rank stands in `src`, if every rank does: (p,)."""
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

    def _turn(self, to: Ints) -> tuple[int | None, Ints]:
        """Tell whether all moves reach equally far, and which move ends at each place. to: (p,)."""
        count, turn = len(to), int(to[0])
        if (to == self._around[turn : turn + count]).all():
            return turn, self._around[count - turn : 2 * count - turn]
        back = np.empty_like(to)
        back[to] = self._ranks
        return None, back

    def _mixed(self, shape: PatternShape, inside: Bools) -> Pattern:
        """Make the pattern of messages inside and between nodes; the slower end or NIC counts."""
        src, dst = shape.src, shape.dst
        latency, overhead, per_byte = (
            np.where(inside, own, np.maximum(values[self._kind[src]], values[self._kind[dst]]))
            for own, values in zip(terms(self._machine.inside), self._columns(), strict=True)
        )
        shared: Each = 0.0
        if self._port is not None:
            shared = one(self._shared(shape, ~inside))
        curves = [(np.flatnonzero(inside), self._machine.inside)]
        for kind, link in enumerate(self._links):
            either = (self._kind[src] == kind) | (self._kind[dst] == kind)
            curves.append((np.flatnonzero(either & ~inside), link))
        measured = tuple((moves, link) for moves, link in curves if link.points and len(moves))
        numbers = (one(latency + overhead), one(overhead), one(per_byte))
        return Pattern(shape, Wire(*numbers, measured, shared))

    def _turns(self, pattern: Pattern, out: Bools) -> Pattern:
        """Add the effects of ports that pass bytes in bursts; `out` (m,): between nodes."""
        nic, port, shape = self._machine.nic, self._port, pattern.shape
        pattern = replace(pattern, burst=np.where(out, self._machine.burst, 0.0))
        if nic is None or port is None or not nic.turn:
            return pattern
        later = [_later(np.where(out, port[ends], -1)) for ends in (shape.src, shape.dst)]
        return replace(
            pattern,
            turn=nic.turn,
            behind=(pattern.wire.shared * later[0], pattern.wire.shared * later[1]),
        )

    def _columns(self) -> tuple[Floats, Floats, Floats]:
        """Return L, o and G of each kind of link between nodes."""
        latency, overhead, per_byte = np.array([terms(link) for link in self._links]).T
        return latency, overhead, per_byte

    def _shared(self, shape: PatternShape, out: Bools) -> Floats:
        """Return the s/B of each move on its NICs: a fluid fair share among the round's moves.

        Holds for moves of a round that overlap in time; ranks that drift apart by more than a
        message's time would share less.
        """
        nic, port = self._machine.nic, self._port
        if nic is None or port is None:
            return np.zeros(len(shape.src))
        src, dst = shape.src, shape.dst
        count = int(port.max()) + 1
        sending = np.bincount(port[src[out]], minlength=count)[port[src]]
        receiving = np.bincount(port[dst[out]], minlength=count)[port[dst]]
        speed = np.array([nic.per_byte, *map(nic.of, self._links[1:])])[self._kind]
        return np.where(out, np.maximum(speed[src] * sending, speed[dst] * receiving), 0.0)


class SeveralPlaces:
    """Link parameters of the members of one group on several machines: a row for each of them.

    No machine's ports pass bytes by turns, so that all machines' patterns have one shape.
    """

    def __init__(self, machines: Sequence[Machine], group: Group) -> None:
        runs = [[*same] for _, same in groupby(machines, id)]
        self._places = [Places.of(same[0], group) for same in runs]
        self._rows = [len(same) for same in runs]
        self._known: dict[tuple[int, ...], tuple[list[Pattern], Pattern]] = {}
        # L, o and G inside nodes and between them: (2, 3, rows, 1); None if these do not tell all
        self._terms: Floats | None = None
        if all(one.plain for one in self._places):
            each = np.array([one.links for one in self._places])
            self._terms = np.moveaxis(np.repeat(each, self._rows, axis=0), 0, -1)[..., None]

    def pattern(self, rnd: Round) -> Pattern:
        """Return the speeds of a round's moves on each machine."""
        if len(self._places) == 1:
            return self._places[0].pattern(rnd)
        key: tuple[int, ...]
        if self._terms is not None:
            first = self._places[0].pattern(rnd)
            key = (id(first),)
            if key not in self._known:
                self._known[key] = [first], Pattern(first.shape, self._plain(rnd, self._terms))
            return self._known[key][1]
        each = [places.pattern(rnd) for places in self._places]
        key = tuple(map(id, each))
        if key not in self._known:
            wire = Wire.rows([one.wire for one in each], self._rows, len(rnd.src))
            self._known[key] = each, Pattern(each[0].shape, wire)
        return self._known[key][1]

    def _plain(self, rnd: Round, both: Floats) -> Wire:
        """Return the seconds of a round's messages by the links inside and between nodes."""
        inside = self._places[0].inside(rnd.src, rnd.dst)
        latency, overhead, per_byte = np.where(inside, both[0], both[1])
        return Wire(latency + overhead, overhead if overhead.any() else 0.0, per_byte)


def by_turns(machine: Machine) -> bool:
    """Tell whether ports of a machine pass bytes in bursts, or its ranks take turns at them."""
    return machine.burst > 0.0 or (machine.nic is not None and machine.nic.turn > 0.0)


def _later(port: Ints) -> Floats:
    """Return the share of a port's moves that come after each move: (m,); 0 at port -1."""
    order = np.argsort(port, kind="stable")
    ordered = port[order]
    stop = np.searchsorted(ordered, ordered, side="right")
    count = stop - np.searchsorted(ordered, ordered)
    shares = np.empty(len(port))
    shares[order] = np.where(ordered < 0, 0.0, (stop - 1 - np.arange(len(port))) / count)
    return shares


def _uniform(shape: PatternShape, link: Link, shared: Each = 0.0) -> Pattern:
    """Make a pattern whose moves all use one link class."""
    return Pattern(shape, Wire.slowest([link], one(shared)))


def ports(machine: Machine) -> Ints:
    """Return every rank's network port on a machine: a node's ranks divide its ports evenly."""
    assert machine.nic is not None
    node = np.array(machine.node_of_rank)
    order = np.argsort(node, kind="stable")
    ranks = np.bincount(node)
    place = np.empty_like(node)
    place[order] = np.arange(len(node)) - np.repeat(np.cumsum(ranks) - ranks, ranks)
    port: Ints = node * machine.nic.per_node + place * machine.nic.per_node // ranks[node]
    return port
