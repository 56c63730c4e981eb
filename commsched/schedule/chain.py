"""The broadcast down a chain: blocks follow each other, so that all links work at once."""

from collections.abc import Iterator

import numpy as np

from commsched.arrays import Ints
from commsched.schedule.rounds import Goal, Round, Schedule

BLOCKS = 8  # the last member has all blocks after 1 + (p - 2) / 8 times the seconds of one link


def chain(ranks: int, root: int) -> Schedule:
    """Pass every block from the root to its successor, and so on, until all members have it.

    p + 6 rounds for 8 blocks; all members except the last send the tensor once. Good for
    large tensors in small groups.
    Source: van de Geijn, "On global combine operations", JPDC 22(2), 1994 (pipelined broadcast).
    """
    order = (np.arange(ranks) + root) % ranks
    return Schedule(
        name="chain",
        goal=Goal.BROADCAST,
        ranks=ranks,
        blocks=BLOCKS,
        rounds=lambda: _rounds(order),
        owner=np.full(BLOCKS, root),
    )


def _rounds(order: Ints) -> Iterator[Round]:
    """Yield the rounds: in round k the i-th member of the chain passes block k - i on."""
    places = np.arange(len(order) - 1)
    for k in range(BLOCKS + len(order) - 2 if len(order) > 1 else 0):
        at = places[(places <= k) & (k - places < BLOCKS)]
        yield Round(order[at], order[at + 1], k - at, k - at + 1, False, 1)
