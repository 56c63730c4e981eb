"""The members of a group by the levels of its machine."""

import math

import numpy as np

from commsched.arrays import Ints
from commsched.machine.level import LevelShape
from commsched.machine.model import Group


def nested(group: Group, *, grids: bool = False) -> Ints:
    """Return the members as a table with an axis per level, outermost first.

    The order of an axis is that of `tree_order`. Levels whose units the group fills unevenly, or
    that have one member or unit, have no axis. With `grids` a whole torus has an axis per
    direction, the last varying fastest. A machine without levels has two axes: nodes, and the ranks
    of each; nodes with different numbers of ranks are an error.
    """
    if not group.levels:
        assert group.lanes
        return np.array(group.members, dtype=np.int64)
    ranks = np.array(group.ranks)
    widths: list[tuple[int, ...]] = []
    inner = 1
    for span in (*group.levels, LevelShape(max(group.ranks) + 1)):
        counts = np.unique(ranks // span.size, return_counts=True)[1]
        places = int(counts[0]) // inner
        if places == 1 or (counts != counts[0]).any():
            continue
        whole = grids and places == math.prod(span.torus) and len(span.torus) > 1
        widths.append(span.torus if whole else (places,))
        inner = int(counts[0])
    order = tree_order(group) if not grids else np.argsort(ranks, kind="stable")
    shape = [places for axes in reversed(widths) for places in reversed(axes)]
    return order.reshape(shape or [1])


def tree_order(group: Group) -> Ints:
    """List the members along the tree, so that neighbours are as near as can be: (p,).

    Units are visited one after the other; a torus is visited like a snake, whose ends are
    neighbours where its last direction has an even number of children.
    """
    if not group.levels:
        return np.array([rank for node in group.members for rank in node], dtype=np.int64)
    ranks = np.array(group.ranks, np.int64)
    place, inner = np.zeros_like(ranks), 1
    for span in group.levels:
        child = ranks % span.size // inner
        if span.torus:
            child = np.argsort(_snake(span.torus))[child]
        place += child * inner
        inner = span.size
    place += ranks // inner * inner
    return np.argsort(place, kind="stable")


def _snake(torus: tuple[int, ...]) -> Ints:
    """Return the children of a torus in the order of a snake: each is next to the one before."""
    found = np.zeros(1, np.int64)
    for width in torus:
        stride = len(found)
        turns = [found if k % 2 == 0 else found[::-1] for k in range(width)]
        found = np.concatenate([turn + k * stride for k, turn in enumerate(turns)])
    return found
