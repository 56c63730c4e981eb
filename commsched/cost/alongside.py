"""Groups of ranks that exchange at the same time and share the ports of nodes and other units."""

from dataclasses import replace

import numpy as np

from commsched.arrays import Ints
from commsched.cost.climb import switches_below
from commsched.cost.pattern import once, ports
from commsched.machine.level import place_of_node, port_rates
from commsched.machine.model import Group, Machine, Nic


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


def _crowds(machine: Machine, group: Group) -> dict[int, float]:
    """Return by level how many times slower its ports are for a group beside all others."""
    node, crowds = place_of_node(machine.levels), dict[int, float]()
    if machine.nic is not None:
        crowds[node + 1] = _crowd(ports(machine), group)
    rates = port_rates(machine.levels)
    if any(rates):
        everyone = np.arange(machine.size)
        for k, below in enumerate(switches_below(machine.levels, everyone)):
            if rates[k] and k != node + 1:
                crowds[k] = _crowd(below, group)
    return crowds


def _crowd(port: Ints, group: Group) -> float:
    """Return the most ranks over the most members of the group, on the ports of its members."""
    ranks = np.bincount(port)
    members = np.bincount(port[np.array(group.ranks)], minlength=len(ranks))
    return float(ranks[members > 0].max() / members.max())


def _crowded(machine: Machine, crowds: dict[int, float]) -> Machine:
    """Return the machine with slower ports."""
    node, nic = place_of_node(machine.levels) + 1, machine.nic
    levels, rates = list(machine.levels), port_rates(machine.levels)
    for k in crowds.keys() - {node}:
        port = Nic(per_node=1, per_byte=rates[k] * crowds[k])
        levels[k] = replace(levels[k], nic=port, oversubscription=0.0)
    return replace(
        machine,
        levels=tuple(levels),
        nic=None if nic is None else replace(nic, per_byte=nic.per_byte * crowds[node]),
    )
