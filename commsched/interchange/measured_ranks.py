"""The ranks of a machine that a benchmark log of one level was measured on."""

from commsched.errors import CommschedError
from commsched.interchange.micro_benchmarks import ALL_REDUCE, Series
from commsched.machine.level import shapes_of
from commsched.machine.model import Machine
from commsched.machine.relink import PLACES
from commsched.nearest_name import nearest


def level_of(machine: Machine, name: str) -> int:
    """Return a level's index by name; without levels, links inside nodes are 0, between them 1."""
    known = [level.name for level in machine.levels] or list(PLACES)
    if name not in known:
        what = "levels are" if machine.levels else "links are"
        raise CommschedError(
            f"{machine.name} has no level {name!r}; its {what} {', '.join(known)}"
            + nearest(name, known)
        )
    return known.index(name)


def ranks_of(machine: Machine, level: int, series: Series) -> tuple[int, ...]:
    """Return the ranks, within one unit of a level, on which a series was measured.

    The ranks are spread evenly over as many children of the unit as possible. If the test does not
    name its ranks, a message goes from the first child to the second, and an all-reduce is that of
    all ranks of the unit.
    """
    shapes, children = shapes_of(machine.levels), machine.levels[level].children
    child = shapes[level - 1].size if level else 1
    if series.lanes:
        found = _spread(series.lanes, children, child, machine.everyone.lanes)
    elif series.kind == ALL_REDUCE:
        found = tuple(range(min(shapes[level].size, machine.size)))
    else:
        found = (0, child)
    if found and found[-1] < machine.size:
        return found
    measured = f"{len(series.lanes)} x {series.lanes[0]}" if series.lanes else "2 x 1"
    raise CommschedError(
        f"{series.path}: measured {measured} ranks, which do not spread evenly over children of"
        f" level {machine.levels[level].name!r} of {machine.name} ({children} of {child} ranks);"
        " nearest: a rank in each child"
    )


def _spread(lanes: tuple[int, ...], children: int, child: int, node: int) -> tuple[int, ...]:
    """Deal hosts, or the ranks of a single host, out to children; () if they do not fit."""
    hosts, each = len(lanes), lanes[0]
    dealt, ranks = (hosts, each) if hosts > 1 else (each, 1)
    stride = node if hosts > 1 and child >= node else ranks
    counts = [n for n in range(2, children + 1) if dealt % n == 0 and dealt // n * stride <= child]
    if not counts or ranks > stride:
        return ()
    used = counts[-1]
    return tuple(
        c * child + place * stride + rank
        for c in range(used)
        for place in range(dealt // used)
        for rank in range(ranks)
    )
