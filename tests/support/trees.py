"""Machines of many levels: trees, and a torus."""

from dataclasses import replace
from math import prod

from commsched.machine.level import Level, place_of_node
from commsched.machine.model import Link, Machine, Nic, resized
from tests.support.exchanges import filled

STEP = (  # s/B and L of the links of a tree, inside out
    Link(latency=1e-6, overhead=3e-7, per_byte=1e-11, source="test"),
    Link(latency=2e-6, overhead=3e-7, per_byte=2e-11, source="test"),
    Link(latency=5e-6, overhead=1e-6, per_byte=1e-10, source="test"),
    Link(latency=9e-6, overhead=1e-6, per_byte=1e-10, source="test"),
)
NAMES = ("socket", "node", "rack", "fabric")


def tree(*children: int, names: tuple[str, ...] = NAMES, **keys: object) -> Machine:
    """A machine by its children per level; nodes have a port each, racks half their rate."""
    levels = [
        Level(name=name, children=count, link=link)
        for name, count, link in zip(names, children, STEP, strict=False)
    ]
    node = place_of_node(levels)
    for k in range(node + 2, len(levels)):
        levels[k] = replace(levels[k], oversubscription=2.0)
    inside, outside = prod(children[: node + 1]), prod(children[node + 1 :])
    made = filled(
        outside,
        inside,
        inside=levels[node].link,
        between=levels[min(node + 1, len(levels) - 1)].link,
        nic=Nic(per_node=1, per_byte=1e-10) if node + 1 < len(levels) else None,
        levels=tuple(levels),
    )
    return replace(made, **keys)


FOUR = tree(2, 2, 2, 2)

TORUS = replace(
    filled(2, 12, inside=STEP[0], between=STEP[3], nic=Nic(per_node=3, per_byte=1e-10)),
    levels=(
        Level(name="slice", children=12, link=STEP[0], torus=(3, 2, 2)),
        Level(name="fabric", children=2, link=STEP[3]),
    ),
)
TREES = [FOUR, tree(3, 2, 2, 3), resized(FOUR, 3), resized(FOUR, 5), TORUS, tree(2, 3, names=NAMES)]
