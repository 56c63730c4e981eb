"""Routes of pieces inside nodes and between the same lanes of all nodes."""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from commsched.exchange.node_lanes import places_in
from commsched.schedule.circles import Circles, circles, rotated_all_to_all
from commsched.schedule.rounds import Goal, Round, Schedule

LAG = 2  # pieces under way while one is summed and coded for its node
STEP = 2  # pieces under way while one is summed and coded for the next partner


@lru_cache(maxsize=64)
def inside(members: tuple[tuple[int, ...], ...]) -> Schedule:
    """All-to-all of blocks (node, from, to) inside all nodes."""
    ranks = np.array(members, np.int64)
    nodes, lanes = ranks.shape
    node, lane = places_in(ranks)
    block = node[ranks] * lanes + lane[ranks]
    on = circles(ranks, block, block + 1)
    return Schedule(
        name="node-all-to-all",
        goal=Goal.ALL_TO_ALL,
        ranks=ranks.size,
        blocks=nodes * lanes * lanes,
        rounds=lambda: rotated_all_to_all(on, lane, node),
    )


@lru_cache(maxsize=64)
def gathered(members: tuple[tuple[int, ...], ...], count: int, lag: int = LAG) -> Schedule:
    """All-gather of blocks (lane, piece, node) along all lanes, and then inside all nodes.

    Pieces follow each other; a piece goes on inside the nodes once `lag` further ones have left.
    """
    ranks = np.array(members, np.int64)
    nodes, lanes = ranks.shape
    first = (np.arange(lanes) * count * nodes)[:, np.newaxis] + np.arange(nodes)
    on = circles(ranks.T, first, first + 1)
    beside = circles(ranks, *(np.tile(first[:, 0] + k * nodes, (nodes, 1)) for k in (0, 1)))
    late = lag if nodes > 1 else 0

    def rounds() -> Iterator[Round]:
        done = 0
        for turn in range(count + late):
            if turn < count:
                yield from _straight(on, turn * nodes, 1, 0)
                done += nodes - 1
            if turn >= late:
                waits = done if nodes > 1 else 0
                yield from _straight(beside, (turn - late) * nodes, nodes, waits)
                done += lanes - 1

    return Schedule(
        name="lane-all-gather-pieces",
        goal=Goal.ALL_GATHER,
        ranks=ranks.size,
        blocks=lanes * count * nodes,
        rounds=rounds,
    )


def _straight(on: Circles, after: int, length: int, waits: int) -> Iterator[Round]:
    """Send `length` blocks, `after` the own ones, straight to all others of the circle."""
    first = on.ahead(on.first, 0) + after
    for k in range(1, on.places):
        dst = on.ahead(on.ranks, k)
        yield Round(on.src, dst, first, first + length, False, 1, waits=waits)


@lru_cache(maxsize=64)
def doubled(members: tuple[tuple[int, ...], ...], count: int) -> Schedule:
    """Sum blocks (piece, lane) inside nodes, by recursive doubling along lanes, and share them.

    Every turn begins a piece and continues the pieces that began STEP or more turns ago. The
    nodes are a power of two.
    """
    ranks = np.array(members, np.int64)
    nodes, lanes = ranks.shape
    src, lane = ranks.ravel(), np.tile(np.arange(lanes), nodes)
    ahead = [(lane + k) % lanes for k in range(1, lanes)]
    beside = [
        ranks[np.arange(nodes)[:, np.newaxis], to.reshape(nodes, lanes)].ravel() for to in ahead
    ]
    partners = [ranks[np.arange(nodes) ^ (1 << s)].ravel() for s in range(nodes.bit_length() - 1)]

    def step(number: int, piece: int, done: int) -> Iterator[Round]:
        if number == 0:
            for to, dst in zip(ahead, beside, strict=True):
                first = piece * lanes + to
                yield Round(src, dst, first, first + 1, True, 1, 0)
        elif number <= len(partners):
            first, merged = piece * lanes + lane, lanes << number - 1
            waits = done if merged > 1 else 0
            yield Round(src, partners[number - 1], first, first + 1, True, merged, waits)
        else:
            first = piece * lanes + lane
            for dst in beside:
                yield Round(src, dst, first, first + 1, False, ranks.size, done)

    def rounds() -> Iterator[Round]:
        after = [0, *(1 + STEP * k for k in range(len(partners) + 1))]  # turns, of each step
        done = 0
        for turn in range(count + after[-1]):
            for number, late in enumerate(after):
                if 0 <= turn - late < count:
                    made = list(step(number, turn - late, done))
                    done += len(made)
                    yield from made

    return Schedule(
        name="node-doubling-pieces",
        goal=Goal.ALL_REDUCE,
        ranks=ranks.size,
        blocks=lanes * count,
        rounds=rounds,
    )
