"""The position of a group on a machine of many levels."""

from dataclasses import replace

import numpy as np

from commsched.cost.closed_terms import Circle, Site, remembered, sampled
from commsched.cost.wire import Wire
from commsched.machine.model import Group, Machine
from commsched.schedule.circles import everyone
from commsched.schedule.levels import axis_rings
from commsched.schedule.nesting import nested, tree_order


class TreeSite(Site):
    """Asks the tree which links and ports the messages of a round take."""

    def __init__(self, machine: Machine, group: Group) -> None:
        super().__init__(machine, group)
        self._order = tree_order(group)
        innermost = np.unique(np.array(group.ranks) // group.levels[0].size, return_counts=True)
        self._innermost = int(innermost[1].max())
        first = machine.levels[0]
        near = [first.link, *(slow.link for slow in first.overrides)]
        inside = Wire.slowest(near)
        hops = max(1.0, sum(first.torus) / 4)  # of a torus, on average
        away = inside.away + (hops - 1) * max(link.latency for link in near)
        self.inside = replace(inside, away=away)

    @remembered
    def mates(self, ahead: int) -> Wire:
        """Return the slowest link to the rank `ahead` places on in the own node."""
        table = np.array(self.group.members)
        return self.wire(table.ravel(), np.roll(table, -ahead, axis=1).ravel()).most()

    @remembered
    def peers(self, ahead: int) -> Wire:
        """Return the slowest link to the rank of equal lane `ahead` nodes on."""
        table = np.array(self.group.members)
        return self.wire(table.ravel(), np.roll(table, -ahead, axis=0).ravel()).most()

    @remembered
    def apart(self, distance: int, flows: int) -> Wire:
        """Return the slowest link at this distance; `flows` is 1 if one end of each pair sends."""
        p, place = self.ranks, np.arange(self.ranks)
        if flows == 1:
            src = place[distance :: 2 * distance]
            dst = src - distance
        else:
            src = place[(place ^ distance) < p]
            dst = src ^ distance
        return self.wire(self._order[src], self._order[dst]).most()

    @remembered
    def circle(self) -> Circle:
        """Return the links of a circle through all units, one after the other."""
        on = self.ring(everyone(self.group))
        together = self._innermost - 1 if len(on.counts) > 1 else 0
        return Circle(on.counts, on.wires, together)

    @remembered
    def rings(self) -> list[tuple[int, Circle]]:
        """Return the circles of `nested`, inside out, each with its number of ranks."""
        return [(on.places, self.ring(on)) for on in axis_rings(nested(self.group))]

    @remembered
    def crossings(self) -> list[tuple[int, float, Wire]]:
        """Return some rounds of a rotation as `Site.crossings` does, with their slowest links."""
        found = []
        for rounds, k in sampled(self.ranks):
            wires = self.wire(self._order, np.roll(self._order, -k))
            slowest = wires.most()
            crossing = float(np.mean(np.equal(wires.away, slowest.away)))
            more = 1 + 1 / min(k, self.ranks - k)  # of those in a chain
            found.append((rounds, min(1.0, crossing * more), slowest))
        return found
