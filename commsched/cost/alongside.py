"""Groups of ranks that exchange at the same time and share the ports of their nodes."""

from dataclasses import replace

import numpy as np

from commsched.cost.pattern import ports
from commsched.machine.model import Group, Machine


def alongside(machine: Machine, group: Group) -> Machine:
    """Return the machine as a group sees it while all other ranks exchange in their groups.

        G' = G (most ranks) / (most members)    on any of the group's ports

    G [s/B] of a network port; members are the ranks of the group. The slowest port thus
    serves all of its ranks.
    Source: a fluid fair share, as between the moves of one round (`Pattern`).
    Holds for groups whose exchanges are under way together, such as those of a pipeline's stages
    after its last microbatch; groups that start further apart than an exchange takes share less.
    """
    if machine.nic is None or group.size in (1, machine.size):
        return machine
    port = ports(machine)
    ranks = np.bincount(port)
    members = np.bincount(port[np.array(group.ranks)], minlength=len(ranks))
    used = members > 0
    crowd = float(ranks[used].max() / members.max())
    key = "alongside", crowd
    found = machine.derived.get(key)
    if not isinstance(found, Machine):
        nic = replace(machine.nic, per_byte=machine.nic.per_byte * crowd)
        machine.derived[key] = found = replace(machine, nic=nic)
    return found
