"""The levels of a machine, inside out, and the links that join the children of each."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, isfinite, prod
from typing import Annotated, NamedTuple

from commsched.errors import CommschedError
from commsched.machine.link import Link, Nic
from commsched.records import Check, check_name, normalise

NODE = "node"  # the level whose units are hosts
COUNT = Check("must be from 1 to 1048576", lambda n: 1 <= n <= 2**20)
TIMES = Check("must be 0 or finite and at least 1", lambda f: f == 0 or (isfinite(f) and f >= 1))


class LevelShape(NamedTuple):
    """The shape of a level, as schedules see it."""

    size: int  # ranks of one unit
    torus: tuple[int, ...] = ()
    rails: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowChild:
    """Another link to its siblings for one child, counted over the machine."""

    child: int
    link: Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Units of equally many children, the link between two of them, and the ports of each.

    The children of the first level are ranks, those of another level are units of the level below.
    """

    name: str
    children: Annotated[int, COUNT]
    link: Link  # whole cost of a message between two children; in a torus, of each hop
    nic: Nic | None = None  # ports of a child, which its ranks share
    # Total rate of a child's own children, divided by the rate of the ports that they share.
    oversubscription: Annotated[float, TIMES] = 0.0
    rails: Annotated[int, COUNT] = 1  # switches; switch k connects the k-th part of each child
    torus: tuple[int, ...] = ()  # children in each direction; their links lead to neighbours
    overrides: tuple[SlowChild, ...] = ()
    source: str = ""  # of these numbers

    def __post_init__(self) -> None:
        check_name("level", self.name)
        normalise(self, f"level {self.name!r}: ")
        if self.torus and prod(self.torus) != self.children:
            shape = " x ".join(map(str, self.torus))
            raise CommschedError(
                f"level {self.name!r}: a torus of {shape} has {prod(self.torus)} children, not"
                f" {self.children}"
            )
        if self.nic is not None and self.oversubscription:
            raise CommschedError(
                f"level {self.name!r}: 'nic' and 'oversubscription' both say what a child's ports"
                " carry; give one of them"
            )


def place_of_node(levels: Sequence[Level]) -> int:
    """Return which level's units are the nodes: the one named node, or the first."""
    return next((k for k, level in enumerate(levels) if level.name == NODE), 0)


def shapes_of(levels: Sequence[Level]) -> tuple[LevelShape, ...]:
    """Return the shapes of levels, inside out."""
    found, size = [], 1
    for level in levels:
        size *= level.children
        found.append(LevelShape(size, level.torus, level.rails))
    return tuple(found)


def check_tree(levels: Sequence[Level]) -> None:
    """Refuse levels that make no tree."""
    node = place_of_node(levels)
    names = [level.name for level in levels]
    if len(set(names)) < len(names):
        raise CommschedError(f"levels: two are named {max(names, key=names.count)!r}")
    for k, level in enumerate(levels):
        where = f"level {level.name!r}"
        if k == 0 and (level.nic is not None or level.oversubscription or level.rails > 1):
            raise CommschedError(
                f"{where}: its children are ranks, which share no ports and hang on one switch;"
                " 'nic', 'oversubscription' and 'rails' belong to a level above"
            )
        if k == node + 1 and level.oversubscription:
            raise CommschedError(
                f"{where}: its children are nodes; give their ports in 'nic', and"
                " 'oversubscription' in a level above"
            )
        if level.rails > 1 and k == len(levels) - 1:
            raise CommschedError(
                f"{where}: its {level.rails} rails meet nowhere; give a level above it, which joins"
                " them"
            )
        away = [o.child for o in level.overrides if o.child < 0]
        if away:
            raise CommschedError(f"{where}: overrides: no child has number {away[0]}")


def refitted(levels: tuple[Level, ...], nodes: int, lanes: int) -> tuple[Level, ...]:
    """Return the levels of a machine by its numbers of nodes and of ranks per node.

    Levels outside nodes keep their sizes, so that the last unit may be partly filled; the outermost
    grows. Levels inside nodes keep sizes that divide the ranks; the node's level gets the rest.
    """
    node = place_of_node(levels)
    counts = [level.children for level in levels]
    left = lanes
    for k in range(node):
        counts[k] = gcd(counts[k], left)
        left //= counts[k]
    counts[node] = left
    left = nodes
    for k in range(node + 1, len(levels)):
        if k == len(levels) - 1:
            counts[k] = max(1, left)
        left = -(-left // counts[k])
    return tuple(
        replace(level, children=count, torus=_torus(level, count))
        for level, count in zip(levels, counts, strict=True)
    )


def _torus(level: Level, count: int) -> tuple[int, ...]:
    """Return the sizes of a level's torus of `count` children: as even as they can be."""
    if not level.torus or count == level.children:
        return level.torus
    shape, left = [], count
    for directions in range(len(level.torus), 0, -1):
        most = round(left ** (1 / directions)) if directions > 1 else left
        shape.append(next(k for k in range(most, 0, -1) if left % k == 0))
        left //= shape[-1]
    return tuple(sorted(shape, reverse=True))


def port_rates(levels: Sequence[Level]) -> list[float]:
    """Return s/B of all ports together of a child of each level; 0: it shares none."""
    rates: list[float] = []
    inner = 0.0  # s/B of the ports next below, of all units of a child together
    for k, level in enumerate(levels):
        inner /= levels[k - 1].children if k else 1
        if level.nic is not None:
            rates.append(level.nic.per_byte / level.nic.per_node)
        elif level.oversubscription:
            ranks = shapes_of(levels)[k - 1].size
            own = inner or levels[k - 1].link.per_byte / ranks
            rates.append(own * level.oversubscription)
        else:
            rates.append(0.0)
        inner = rates[k] or inner
    return rates
