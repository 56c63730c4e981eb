"""The binary tree all-reduce: a sum that travels to one root, and back."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from commsched.arrays import Ints
from commsched.errors import CommschedError
from commsched.machine.model import Group
from commsched.schedule.fold import same_or_each
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


class _Tree(NamedTuple):
    """A tree over the members of a group."""

    parent: Ints  # (p,); the root's is itself
    depth: Ints  # (p,) of the root 0
    turn: Ints  # (p,) number of siblings before a member at their parent
    below: Ints  # (p,) number of members in the subtree of each, itself included


def chains(group: Group) -> Schedule:
    """Chain the ranks of each node; a binary tree joins the first ranks of the nodes.

    2 (log2 N + K - 1) levels for N nodes of K ranks; p - 1 whole tensors travel up and p - 1 down,
    at most two of them to a node and one from it. Good for small tensors on many nodes. NCCL's
    tree: two of them, mirrored, make it a double binary tree of the nodes.
    Source: Sanders, Speck & Träff, "Two-tree algorithms for full bandwidth broadcast, reduction
    and scan", Parallel Computing 35(12), 2009; NVIDIA/nccl, src/graph/trees.cc.
    """
    parent = np.zeros(group.size, np.int64)
    heads = np.array([members[0] for members in group.members])
    parent[heads] = heads[_binary(len(heads))]
    for members in group.members:
        parent[list(members[1:])] = members[:-1]
    return _along("binary-tree:chains", parent)


def flat(group: Group) -> Schedule:
    """Join all ranks in one binary tree, in the order of their numbers."""
    return _along("binary-tree:ranks", _binary(group.size))


@COLLECTIVES.family("binary-tree:chains", listed=False)
def shaped(parameters: list[str]) -> Callable[[Group], Schedule]:
    """Read `binary-tree:chains` or `binary-tree:ranks`; planners try neither unless asked."""
    shapes = {"chains": chains, "ranks": flat}
    if len(parameters) != 1 or parameters[0] not in shapes:
        raise CommschedError(f"shape {':'.join(parameters)!r}; allowed: {', '.join(shapes)}")
    return shapes[parameters[0]]


def _binary(count: int) -> Ints:
    """Return the parent of each of `count` members, (count,): leaves are odd, the root is 0.

    The lowest bit of a member moves up by one, or is cleared if no such member exists.
    """
    member = np.arange(count)
    low = member & -member
    up = (member ^ low) | (low << 1)
    found: Ints = np.where(up < count, up, member ^ low)
    return found


def _along(name: str, parent: Ints) -> Schedule:
    @cache
    def rounds() -> tuple[Round, ...]:
        return tuple(_rounds(_tree(parent)))

    return Schedule(
        name=name,
        goal=Goal.ALL_REDUCE,
        ranks=len(parent),
        blocks=1,
        rounds=lambda: iter(rounds()),
    )


def _tree(parent: Ints) -> _Tree:
    """Number the levels and siblings of a tree, and count what is below each member."""
    members = np.arange(len(parent))
    depth, at = np.zeros_like(parent), members
    while (parent[at] != at).any():
        depth += parent[at] != at
        at = parent[at]
    below = np.ones_like(parent)
    for level in range(int(depth.max()), 0, -1):
        children = depth == level
        np.add.at(below, parent[children], below[children])
    turn = np.zeros_like(parent)
    order = np.argsort(np.where(depth, parent, -1), kind="stable")
    above = parent[order]
    turn[order] = members - np.searchsorted(np.where(depth[order], above, -1), above)
    turn[depth == 0] = 0
    return _Tree(parent, depth, turn, below)


def _rounds(tree: _Tree) -> Iterator[Round]:
    """Yield a round per level and turn: up from the deepest level, then down from the root."""
    levels = range(1, int(tree.depth.max()) + 1)
    turns = range(int(tree.turn.max()) + 1)
    children = [
        np.flatnonzero((tree.depth == level) & (tree.turn == turn))
        for level in levels
        for turn in turns
    ]
    children = [child for child in children if len(child)]
    for child in reversed(children):
        first = np.zeros_like(child)
        merged = same_or_each(tree.below[child])
        yield Round(child, tree.parent[child], first, first + 1, True, merged)
    for child in children:
        first = np.zeros_like(child)
        yield Round(tree.parent[child], child, first, first + 1, False, len(tree.parent))
