"""Changes to links and ports in all levels of a machine."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from commsched.machine.level import place_of_node
from commsched.machine.model import Link, Machine, Nic

PLACES = ("inside", "between")  # nodes


def relinked(
    machine: Machine,
    *,
    inside: Callable[[Link], Link] = lambda link: link,
    between: Callable[[Link], Link] = lambda link: link,
    port: Callable[[Nic], Nic] = lambda nic: nic,
) -> Machine:
    """Change the links inside nodes, those between nodes, and the ports of all units."""
    node = place_of_node(machine.levels)
    return _relinked(
        machine, lambda link, k: (inside if k <= node else between)(link), lambda nic, _: port(nic)
    )


def relinked_at(machine: Machine, place: str, change: Callable[[Link], Link]) -> Machine:
    """Change the links inside or between nodes, or those of the level of a name."""

    def link(old: Link, k: int) -> Link:
        return change(old) if place in _names(machine, k) else old

    return _relinked(machine, link, lambda nic, _: nic)


def _names(machine: Machine, k: int) -> list[str]:
    """Return the names of level k: its own name, if it has one, and its place."""
    own = [level.name for level in machine.levels[k : k + 1]]
    return [*own, PLACES[k > place_of_node(machine.levels)]]


def _relinked(
    machine: Machine, link: Callable[[Link, int], Link], port: Callable[[Nic, int], Nic]
) -> Machine:
    """Change the links and ports of each level; those inside and between nodes are 0 and 1."""
    node = place_of_node(machine.levels)
    levels = tuple(
        replace(
            level,
            link=link(level.link, k),
            nic=level.nic and port(level.nic, k),
            overrides=tuple(replace(x, link=link(x.link, k)) for x in level.overrides),
        )
        for k, level in enumerate(machine.levels)
    )
    return replace(
        machine,
        inside=link(machine.inside, node),
        between=link(machine.between, node + 1),
        overrides={n: link(slow, node + 1) for n, slow in machine.overrides.items()},
        nic=machine.nic and port(machine.nic, node + 1),
        levels=levels,
    )


def scaled_links(machine: Machine, factors: Mapping[str, float], source: str = "") -> Machine:
    """Multiply seconds of the links and of the ports between units; give these the `source`.

    factors: keys "latency inside", "bytes inside", "latency between" and "bytes between" are for
    the links inside and between nodes; a key with a level's name, as "latency rack", is for that
    level's links and ports instead; "oversubscription rack" is for its ports only, and stays >= 1.
    """

    def factor(what: str, k: int) -> float:
        found = (factors.get(f"{what} {name}") for name in _names(machine, k))
        return next((each for each in found if each is not None), 1.0)

    def link(old: Link, k: int) -> Link:
        latency, wire = factor("latency", k), factor("bytes", k)
        if latency == wire == 1.0:
            return old
        return replace(
            old,
            latency=old.latency * latency,
            per_byte=old.per_byte * wire,
            points=tuple((nbytes, seconds * wire) for nbytes, seconds in old.points),
            source=source or old.source,
        )

    def port(old: Nic, k: int) -> Nic:
        wire = factor("bytes", k)
        if wire == 1.0:
            return old
        return replace(old, per_byte=old.per_byte * wire, source=source or old.source)

    scaled = _relinked(machine, link, port)
    levels = tuple(
        replace(level, oversubscription=max(1.0, level.oversubscription * share))
        if level.oversubscription and (share := factors.get(f"oversubscription {level.name}"))
        else level
        for level in scaled.levels
    )
    return replace(scaled, levels=levels)
