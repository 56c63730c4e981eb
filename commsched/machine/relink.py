"""Other links and ports in all levels of a machine."""

from collections.abc import Callable
from dataclasses import replace

from commsched.machine.level import place_of_node
from commsched.machine.model import Link, Machine, Nic


def relinked(
    machine: Machine,
    *,
    inside: Callable[[Link], Link] = lambda link: link,
    between: Callable[[Link], Link] = lambda link: link,
    port: Callable[[Nic], Nic] = lambda nic: nic,
) -> Machine:
    """Change the links inside nodes, those between nodes, and the ports of all units."""
    node = place_of_node(machine.levels)
    levels = tuple(
        replace(
            level,
            link=(inside if k <= node else between)(level.link),
            nic=level.nic and port(level.nic),
            overrides=tuple(
                replace(slow, link=(inside if k <= node else between)(slow.link))
                for slow in level.overrides
            ),
        )
        for k, level in enumerate(machine.levels)
    )
    return replace(
        machine,
        inside=inside(machine.inside),
        between=between(machine.between),
        overrides={node: between(link) for node, link in machine.overrides.items()},
        nic=machine.nic and port(machine.nic),
        levels=levels,
    )
