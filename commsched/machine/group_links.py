"""The links that the messages of a group take."""

from typing import NamedTuple

import numpy as np

from commsched.machine.level import place_of_node, shapes_of
from commsched.machine.model import Group, Link, Machine


class GroupLinks(NamedTuple):
    """Links of a group's messages."""

    near: Link  # the slowest inside nodes
    far: tuple[Link, ...]  # between nodes


def group_links(machine: Machine, group: Group) -> GroupLinks:
    """Return the links of the levels that join members of a group, or those of any two nodes.

    A level joins members if they lie in more of its children than of its units.
    """
    near: list[Link] = []
    far: list[Link] = []
    node, ranks = place_of_node(machine.levels), np.array(group.ranks)
    below = group.size
    for k, (level, shape) in enumerate(zip(machine.levels, shapes_of(machine.levels), strict=True)):
        units = len(np.unique(ranks // shape.size))
        if units < below:
            links = [level.link, *(slow.link for slow in level.overrides)]
            (near if k <= node else far).extend(links)
        below = units
    slowest = max(near or [machine.inside], key=lambda link: link.per_byte)
    return GroupLinks(slowest, tuple(far or [machine.between, *machine.overrides.values()]))
