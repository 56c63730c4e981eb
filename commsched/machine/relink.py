"""Other links and ports in all levels of a machine."""

from collections.abc import Callable, Mapping
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


def scaled_links(machine: Machine, factors: Mapping[str, float], source: str = "") -> Machine:
    """Multiply seconds of the links, and of the ports between units, which then have a source.

    factors: by "latency inside", "bytes inside", "latency between" and "bytes between" nodes.
    """

    def link(old: Link, place: str) -> Link:
        latency, wire = (factors.get(f"{what} {place}") for what in ("latency", "bytes"))
        if latency is None and wire is None:
            return old
        wire = 1.0 if wire is None else wire
        return replace(
            old,
            latency=old.latency * (1.0 if latency is None else latency),
            per_byte=old.per_byte * wire,
            points=tuple((nbytes, seconds * wire) for nbytes, seconds in old.points),
            source=source or old.source,
        )

    def port(old: Nic) -> Nic:
        wire = factors.get("bytes between")
        if wire is None:
            return old
        return replace(old, per_byte=old.per_byte * wire, source=source or old.source)

    return relinked(
        machine,
        inside=lambda old: link(old, "inside"),
        between=lambda old: link(old, "between"),
        port=port,
    )
