"""Groups of ranks that exchange at the same time and share the ports of nodes and other units."""

from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np

from commsched.arrays import Ints
from commsched.cost.level_path import switches_below
from commsched.cost.pattern import once, ports
from commsched.machine.level import place_of_node, port_rates
from commsched.machine.model import Group, Link, Machine, Nic


def alongside(machine: Machine, group: Group) -> Machine:
    """Return the machine as a group sees it while all other ranks exchange in their groups.

        G' = G (most ranks) / (most members)    on any of the group's ports of a level

    G [s/B] of a port of a node or of another unit; members are the ranks of the group. The slowest
    port thus serves all of its ranks.
    Source: a fluid fair share, as between the moves of one round (`Pattern`).
    Holds for groups whose exchanges are under way together, such as those of a pipeline's stages
    after its last microbatch; groups that start further apart than an exchange takes share less.
    """
    if group.size in (1, machine.size):
        return machine
    crowds = once(machine, group, _crowds)
    if not crowds:
        return machine
    key = "alongside", *crowds.items()
    found = machine.derived.get(key)
    if not isinstance(found, Machine):
        machine.derived[key] = found = _crowded(machine, crowds)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowded(Nic):
    """Ports of a child that other groups use, too: `per_byte` is G'."""

    crowd: float  # 0: a link of its own does not slow these ports

    def of(self, own: Link) -> float:
        """Return s/B of the ports of a child with a link of its own, which is as crowded."""
        return max(self.per_byte, self.crowd * own.per_byte)


class _Ports(NamedTuple):
    """The ports of a level that ranks share."""

    of: Ints  # each rank's port
    ranks: Ints  # how many ranks each port has


def _crowds(machine: Machine, group: Group) -> dict[int, float]:
    """Return for each level the factor by which its ports are slower beside all other groups."""
    return {level: _crowd(shared, group) for level, shared in _shared(machine).items()}


def _shared(machine: Machine) -> dict[int, _Ports]:
    """Return a machine's ports by level, derived once."""
    if _shared not in machine.derived:
        node, found = place_of_node(machine.levels), dict[int, Ints]()
        if machine.nic is not None:
            found[node + 1] = ports(machine)
        rates = port_rates(machine.levels)
        if any(rates):
            for k, below in enumerate(switches_below(machine.levels, np.arange(machine.size))):
                if rates[k] and k != node + 1:
                    found[k] = below
        every = {k: _Ports(of, np.bincount(of)) for k, of in found.items()}
        machine.derived[_shared] = every
    return cast("dict[int, _Ports]", machine.derived[_shared])


def _crowd(shared: _Ports, group: Group) -> float:
    """Return the most ranks over the most members of the group, on the ports of its members."""
    used, members = np.unique(shared.of[list(group.ranks)], return_counts=True)
    return float(shared.ranks[used].max() / members.max())


def _crowded(machine: Machine, crowds: dict[int, float]) -> Machine:
    """Return the machine with slower ports."""
    node, nic = place_of_node(machine.levels) + 1, machine.nic
    levels, rates = list(machine.levels), port_rates(machine.levels)
    for k in crowds.keys() - {node}:
        own = levels[k].nic
        pool = _Crowded(per_node=1, per_byte=rates[k] * crowds[k], crowd=0.0)
        port = pool if own is None else _crowded_ports(own, crowds[k])
        levels[k] = replace(levels[k], nic=port, oversubscription=0.0)
    if nic is not None:
        nic = _crowded_ports(nic, crowds[node])
    return replace(machine, levels=tuple(levels), nic=nic)


def _crowded_ports(nic: Nic, crowd: float) -> Nic:
    per_byte = nic.per_byte * crowd
    return _Crowded(per_node=nic.per_node, per_byte=per_byte, turn=nic.turn, crowd=crowd)
