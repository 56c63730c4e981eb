"""The rail-aligned all-to-all: between nodes on rails of equal lanes, then inside nodes."""

from collections.abc import Iterator

import numpy as np

from commsched.arrays import Ints
from commsched.machine.model import Group
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Round, Schedule


@COLLECTIVES.add("all-to-all-rails")
def all_to_all_rails(group: Group) -> Schedule:
    """Send what another node is to get to the rank of equal lane there, which hands it on.

    N nodes of K lanes: for each other node a round on the rails, with messages of K blocks if ranks
    fill node after node, and K - 1 rounds inside nodes with messages of one block; first the K - 1
    rounds of the own node. Good where rails join equal lanes and what joins the rails is
    over-subscribed, or where messages between nodes are slow to begin; the links inside nodes carry
    each block once more. Needs equally many ranks on each node.
    Source: NVIDIA, "Doubling all2all performance with NVIDIA Collective Communication Library
    2.12", 2022 (PXN; there the hop inside the node comes first).
    """
    lanes = group.lanes
    table = np.array(group.members, dtype=np.int64)  # (nodes, lanes)
    return Schedule(
        name="all-to-all-rails",
        goal=Goal.ALL_TO_ALL,
        ranks=group.size,
        blocks=group.size**2,
        rounds=lambda: _rounds(table, lanes),
    )


def _rounds(table: Ints, lanes: int) -> Iterator[Round]:
    size, src, number, came = table.size, table.ravel(), 0, 0
    whole = bool((np.diff(table, axis=1) == 1).all())  # the ranks of each node are one run
    for k in range(len(table)):
        there = np.roll(table, -k, axis=0)  # the ranks of equal lane, k nodes ahead
        held = np.roll(src, k * lanes) * size  # the first block of the rank that is k nodes behind
        if k and whole:
            first = src * size + np.repeat(there[:, 0], lanes)
            yield Round(src, there.ravel(), first, first + lanes, False, 1, 0)
            number = came = number + 1
        for ahead in range(lanes):
            if k and not whole:
                first = src * size + np.roll(there, -ahead, axis=1).ravel()
                yield Round(src, there.ravel(), first, first + 1, False, 1, 0)
                number = came = number + 1
            if ahead:
                mate = np.roll(table, -ahead, axis=1).ravel()
                yield Round(src, mate, held + mate, held + mate + 1, False, 1, came)
                number += 1
