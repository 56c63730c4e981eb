"""Exchanges inside each node and along each lane, for methods with both levels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from commsched.arrays import Ints
from commsched.exchange.method import Ends
from commsched.machine.model import Group
from commsched.schedule.circles import (
    circles,
    ring_all_gather,
    ring_reduce_scatter,
    rotated_all_gather,
    rotated_all_to_all,
)
from commsched.schedule.rounds import Goal, Round, Schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeLanes:
    """N nodes of K lanes: K ranks in a node share its data, N ranks in a lane share its blocks."""

    nodes: int
    lanes: int
    node: Ints  # (p,) of each rank, 0..N-1
    lane: Ints  # (p,) of each rank, 0..K-1
    reduce: Schedule  # inside nodes: sum block k at lane k
    spread: Schedule  # inside nodes: block k from lane k to all
    push: Schedule  # along lanes: block (lane, from, to)
    pull: Schedule  # along lanes: block (lane, owner) to all of its lane

    def reduce_ends(self, rank: int) -> Ends:
        return Ends([], [int(self.lane[rank])])

    def spread_ends(self, rank: int) -> Ends:
        return Ends([int(self.lane[rank])], list(range(self.lanes)))

    def push_ends(self, rank: int) -> Ends:
        node, n = int(self.node[rank]), self.nodes
        first = int(self.lane[rank]) * n * n
        return Ends(
            [first + node * n + to for to in range(n)],
            [first + source * n + node for source in range(n)],
        )

    def pull_ends(self, rank: int) -> Ends:
        first = int(self.lane[rank]) * self.nodes
        return Ends([first + int(self.node[rank])], [first + owner for owner in range(self.nodes)])


def places_in(ranks: Ints) -> Ints:
    """Return the row and the column of each rank in a table of all ranks: (2, p)."""
    found = np.empty((2, ranks.size), np.int64)
    found[:, ranks] = np.indices(ranks.shape)
    return found


@lru_cache(maxsize=64)
def node_lanes(group: Group) -> NodeLanes | None:
    """Return the two levels of a group; None if it has one, or nodes of different sizes.

    Sums go around rings inside nodes, where links are alike; along lanes every packet goes straight
    to its receivers, in round k to the k-th node ahead, since packets differ in size.
    """
    sizes = {len(members) for members in group.members}
    if len(group.members) == 1 or sizes == {1} or len(sizes) > 1:
        return None
    ranks = np.array(group.members, dtype=np.int64)  # (nodes, lanes)
    nodes, lanes = ranks.shape
    node, lane = places_in(ranks)
    inside = circles(ranks, lane[ranks], lane[ranks] + 1)
    block = lane[ranks.T] * nodes + node[ranks.T]
    across = circles(ranks.T, block, block + 1)

    def made(name: str, goal: Goal, blocks: int, rounds: Callable[[], Iterator[Round]]) -> Schedule:
        return Schedule(name=name, goal=goal, ranks=group.size, blocks=blocks, rounds=rounds)

    return NodeLanes(
        nodes=nodes,
        lanes=lanes,
        node=node,
        lane=lane,
        reduce=made(
            "node-reduce-scatter", Goal.REDUCE_SCATTER, lanes, lambda: ring_reduce_scatter(inside)
        ),
        spread=made("node-all-gather", Goal.ALL_GATHER, lanes, lambda: ring_all_gather(inside)),
        push=made(
            "lane-all-to-all",
            Goal.ALL_TO_ALL,
            lanes * nodes * nodes,
            lambda: rotated_all_to_all(across, node, lane),
        ),
        pull=made(
            "lane-all-gather", Goal.ALL_GATHER, lanes * nodes, lambda: rotated_all_gather(across)
        ),
    )
