"""The path of a message through the levels of a machine: the links and the ports that it uses."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from commsched.arrays import Bools, Floats, Ints
from commsched.cost.wire import Wire, terms
from commsched.machine.level import Level, place_of_node, port_rates, shapes_of
from commsched.machine.model import Group, Link, Machine


@dataclass(frozen=True, eq=False)
class _LeavingPorts:
    """The ports by which the children of a level send upwards, for each member of a group."""

    of: Ints  # (p,) the port of each member
    per_byte: Floats | float  # s/B, (p,)


def switches(levels: Sequence[Level], ranks: Ints) -> list[Ints]:
    """Return the switch of each level that a rank hangs on: (p,) each."""
    found = []
    for level, shape in zip(levels, shapes_of(levels), strict=True):
        parts = shape.size // level.children
        rail = ranks % parts * level.rails // parts
        found.append(ranks // shape.size * level.rails + rail)
    return found


def switches_below(levels: Sequence[Level], ranks: Ints) -> list[Ints]:
    """Return the switch of the level below that a rank hangs on, or the rank itself: (p,) each.

    The ranks of a switch share the ports by which it leaves to the level.
    """
    return [ranks, *switches(levels, ranks)[:-1]]


class Climb:
    """Links and ports between the members of a group.

    A message climbs to the lowest level that has both ends on one switch. It pays the link of that
    level, and shares the ports that it leaves and enters on its way with the other messages of its
    round: a fluid fair share of each port. Nodes deal their ports out to their ranks, other units
    pool them. In a torus a message goes along one direction after the other, by the shorter way.
    """

    def __init__(self, machine: Machine, group: Group, node_ports: Ints | None) -> None:
        levels = machine.levels
        self._levels = levels
        ranks = np.array(group.ranks, np.int64)
        shapes = shapes_of(levels)
        self._child = [ranks // (shapes[k - 1].size if k else 1) for k in range(len(levels))]
        self._switch = switches(levels, ranks)
        self._tori = {k: _Torus(x, self._child[k]) for k, x in enumerate(levels) if x.torus}
        self._ports: list[_LeavingPorts | None] = []
        node, rates = place_of_node(levels), port_rates(levels)
        rails = 1
        for k, (level, below) in enumerate(zip(levels, switches_below(levels, ranks), strict=True)):
            nic = level.nic
            if not rates[k]:
                self._ports.append(None)
            elif nic is None:
                self._ports.append(_LeavingPorts(below, rates[k] * rails))
            else:
                per_byte = np.full(len(ranks), nic.per_byte)
                for slow in level.overrides:
                    per_byte[self._child[k] == slow.child] = nic.of(slow.link)
                if k == node + 1 and node_ports is not None:
                    self._ports.append(_LeavingPorts(node_ports, per_byte))
                else:
                    self._ports.append(_LeavingPorts(below, per_byte / nic.per_node * rails))
            rails = level.rails

    def wire(self, src: Ints, dst: Ints) -> Wire:
        """Return the seconds of messages from `src` to `dst`, (m,), members of the group."""
        top = self._top(src, dst)
        found = np.array([terms(level.link) for level in self._levels])[top]  # (m, 3)
        shared = np.zeros(len(src))
        curves: list[tuple[Ints, Link]] = []
        for k in reversed(range(len(self._levels))):  # from the top: its own numbers first
            here = top == k
            self._link(found, curves, k, src, dst, top)
            if k in self._tori and here.any():
                moves = np.flatnonzero(here)
                found[moves], shared[moves] = self._tori[k].ways(src[moves], dst[moves])
            self._share(shared, k, src, dst, top >= k)
        latency, overhead, per_byte = found.T
        return Wire(latency + overhead, overhead, per_byte, tuple(curves), shared)

    def _top(self, src: Ints, dst: Ints) -> Ints:
        """Return the level of each message: (m,)."""
        top = np.full(len(src), len(self._levels) - 1)
        for k in reversed(range(len(self._levels) - 1)):
            top[self._switch[k][src] == self._switch[k][dst]] = k
        return top

    def _link(
        self,
        found: Floats,
        curves: list[tuple[Ints, Link]],
        k: int,
        src: Ints,
        dst: Ints,
        top: Ints,
    ) -> None:
        """Apply the links of single children; if the two ends differ, the slower link counts."""
        level, child = self._levels[k], self._child[k]
        own = [slow.child for slow in level.overrides]
        both = np.isin(child[src], own) & np.isin(child[dst], own)
        found[(top == k) & both] = 0.0
        plain = (top == k) & ~both
        if level.link.points and plain.any():
            curves.append((np.flatnonzero(plain), level.link))
        for slow in level.overrides:
            hit = (top >= k) & ((child[src] == slow.child) | (child[dst] == slow.child))
            found[hit] = np.maximum(found[hit], terms(slow.link))
            if slow.link.points and hit.any():
                curves.append((np.flatnonzero(hit), slow.link))

    def _share(self, shared: Floats, k: int, src: Ints, dst: Ints, through: Bools) -> None:
        """Raise s/B of each message to its share of the ports of a level that it goes through."""
        ports = self._ports[k]
        if ports is None or not through.any():
            return
        per_byte = np.broadcast_to(ports.per_byte, ports.of.shape)
        count = int(ports.of.max()) + 1
        for ends in (src, dst):
            flows = np.bincount(ports.of[ends[through]], minlength=count)[ports.of[ends]]
            np.maximum(shared, per_byte[ends] * flows, out=shared, where=through)


class _Torus:
    """The links of a torus whose children are numbered along its first direction first."""

    def __init__(self, level: Level, child: Ints) -> None:
        self._shape, self._children = level.torus, level.children
        self._child = child
        units = int(child.max()) // level.children + 1
        self._terms = np.tile(terms(level.link), (units * level.children, 1))  # L, o and G
        self._per_byte = np.full(len(self._terms), level.link.per_byte)
        for slow in level.overrides:
            here = np.arange(len(self._terms)) == slow.child
            self._terms[here] = terms(slow.link)
            self._per_byte[here] = slow.link.per_byte

    def ways(self, src: Ints, dst: Ints) -> tuple[Floats, Floats]:
        """Return L, o and G of each way, (m, 3), and s/B of its busiest link, (m,).

        L is that of all hops, o and G are the slowest hop's; the slower end of a hop decides. The
        busiest link counts where messages share one, else 0.
        """
        at, to = self._child[src], self._child[dst]
        found = np.maximum(self._terms[at], self._terms[to])
        found[at != to, 0] = 0.0  # a message between two switches of one child has no hops
        to, used = to % self._children, []
        for number, width in enumerate(self._shape):
            stride = int(np.prod(self._shape[:number], dtype=np.int64))
            here, there = at // stride % width, to // stride % width
            ahead = (there - here) % width
            back = ahead > width - ahead
            left = np.where(back, width - ahead, ahead)
            turn = np.where(back, -1, 1)
            place = at
            for step in range(int(left.max(initial=0))):
                after = at + ((here + (step + 1) * turn) % width - here) * stride
                moving = np.flatnonzero(left > step)
                ends = place[moving], after[moving]
                hop = np.maximum(*(self._terms[end] for end in ends))
                found[moving, 0] += hop[:, 0]
                found[moving, 1:] = np.maximum(found[moving, 1:], hop[:, 1:])
                per_byte = np.maximum(*(self._per_byte[end] for end in ends))
                link = (ends[0] * len(self._shape) + number) * 2 + back[moving]
                used.append((moving, link, per_byte))
                place = after
            at = at + (there - here) * stride
        shared, busiest = np.zeros(len(src)), np.ones(len(src), np.int64)
        load = np.bincount(np.concatenate([at[:0], *(link for _, link, _ in used)]))
        for moving, link, per_byte in used:
            busiest[moving] = np.maximum(busiest[moving], load[link])
            shared[moving] = np.maximum(shared[moving], load[link] * per_byte)
        return found, np.where(busiest > 1, shared, 0.0)
