"""Balanced parallelism: shares by hash, coordinate lists both ways."""

import numpy as np

from commsched.exchange.hashed_shares import COUNTED, Dealing, HashedShares
from commsched.exchange.method import Method, Phase
from commsched.exchange.pair import route
from commsched.exchange.registry import METHODS
from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec


class Balanced(Method):
    """Push lists of hashed parts to their owners, pull lists of their sums.

    Every rank sends and receives (p - 1) / p (1 + g) 8 d N bytes, g = d_p / d, for any
    positions of non-zeros. Good if supports overlap; if they rarely do, use recursive
    doubling.
    Source: Wang et al., "Zen", OSDI 2025 (balanced parallelism).
    """

    name = "balanced"
    lossless = True
    sparse = True
    lists = True

    def phases(self, spec: BucketSpec, group: Group) -> tuple[Phase, ...]:
        hashed = everyone(spec, group, bits=False)
        return (
            hashed.push(route("all-to-all", group), None),
            hashed.pull(route("all-gather-direct", group), None),
        )


def everyone(
    spec: BucketSpec, group: Group, *, bits: bool, dealing: Dealing = COUNTED
) -> HashedShares:
    """Make one run; every rank owns a part of it."""
    return HashedShares(
        spec=spec,
        runs=np.array([0, spec.numel]),
        run_of=lambda rank: 0,
        place_of=lambda rank: rank,
        parts=group.size,
        merged=1,
        bits=bits,
        dealing=dealing,
    )


METHODS.add("balanced")(Balanced())
