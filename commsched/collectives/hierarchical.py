"""The two-level ring all-reduce: inside each node, across nodes, inside each node."""

from itertools import chain

import numpy as np

from commsched.machine.model import Group
from commsched.schedule.circles import circles, ring_all_gather, ring_reduce_scatter
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("hierarchical")
def hierarchical(group: Group) -> Schedule:
    """Reduce-scatter in each node, all-reduce across nodes lane by lane, all-gather in each node.

    N nodes of K lanes; lane k owns blocks [k N, (k + 1) N), its rank in node n block k N + n, so
    that every move is one run of blocks. 2 (K - 1) + 2 (N - 1) rounds; every rank sends
    2 (K - 1) / K of the tensor inside its node and 2 (N - 1) / (N K) of it between nodes. Good
    if links between nodes are slower than links inside; needs equally many ranks on each node.
    Source: Cho et al., "BlueConnect: decomposing all-reduce for deep learning on heterogeneous
    network hierarchy", MLSys 2019.
    """
    lanes = group.lanes
    nodes = len(group.members)
    ranks = np.array(group.members, dtype=np.int64)  # (nodes, lanes)
    lane_first = np.broadcast_to(np.arange(lanes) * nodes, ranks.shape)
    inside = circles(ranks, lane_first, lane_first + nodes)
    block = np.arange(group.size).reshape(lanes, nodes)
    across = circles(ranks.T, block, block + 1)
    return Schedule(
        name="hierarchical",
        goal=Goal.ALL_REDUCE,
        ranks=group.size,
        blocks=group.size,
        rounds=lambda: chain(
            ring_reduce_scatter(inside),
            ring_reduce_scatter(across, merged=lanes),
            ring_all_gather(across, merged=group.size),
            ring_all_gather(inside, merged=group.size),
        ),
    )
