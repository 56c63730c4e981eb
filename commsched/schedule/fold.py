"""The reduction of a group to a power of two."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from commsched.arrays import Ints
from commsched.schedule.rounds import Round


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fold:
    """A power of two of active ranks; each other rank lends its data to its neighbour.

    Source: Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005.
    """

    active: Ints  # (q,), q = the largest power of two that fits
    idle: Ints  # (p - q,)
    hosts: Ints  # (p - q,) active, the host of each idle rank
    weight: Ints  # (q,) ranks summed in each active rank after `fold_in`, 1 or 2


def fold(order: Ints) -> Fold:
    """Pair the first 2 (p - q) ranks of `order`; the second of each pair idles."""
    p = len(order)
    q = 1 << (p.bit_length() - 1)
    pairs = order[: 2 * (p - q)]
    hosts = pairs[0::2]
    weight = np.ones(q, dtype=np.int64)
    weight[: p - q] = 2
    active = np.concatenate([hosts, order[2 * (p - q) :]])
    return Fold(active=active, idle=pairs[1::2], hosts=hosts, weight=weight)


def fold_in(on: Fold, blocks: int) -> Iterator[Round]:
    """Add all blocks of the idle ranks to their hosts: one round, or none."""
    if len(on.idle):
        first = np.zeros_like(on.idle)
        yield Round(on.idle, on.hosts, first, first + blocks, True, 1)


def fold_out(on: Fold, blocks: int) -> Iterator[Round]:
    """Give the idle ranks the sum of everyone: one round, or none."""
    if len(on.idle):
        first = np.zeros_like(on.idle)
        p = len(on.active) + len(on.idle)
        yield Round(on.hosts, on.idle, first, first + blocks, False, p)


def partial_sums(on: Fold, distance: int) -> int | Ints:
    """Count the ranks in each active rank's sum when aligned teams of `distance` have met."""
    teams = on.weight.reshape(-1, distance).sum(axis=1)
    return same_or_each(np.repeat(teams, distance))


def same_or_each(merged: Ints) -> int | Ints:
    """Shorten equal counts to one number."""
    return int(merged[0]) if (merged == merged[0]).all() else merged
