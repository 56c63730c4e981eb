"""Open MPI's choice of an all-reduce."""

from bisect import bisect_right
from math import inf

from commsched.machine.library import LIBRARIES, Algorithm, Library
from commsched.machine.model import Group, Machine

TREE = Algorithm(collective="tree", name="reduce and broadcast")
DOUBLING = Algorithm(collective="doubling", name="recursive doubling")
RING = Algorithm(collective="ring")
SEGMENTED = Algorithm(collective="ring", name="segmented ring")
RABENSEIFNER = Algorithm(collective="halving-doubling", name="Rabenseifner")

# Ranks below -> (bytes below, algorithm), ascending.
# Source: Open MPI 5.0.9, ompi/mca/coll/tuned/coll_tuned_decision_fixed.c, allreduce of a
# commutative operation.
DECISIONS: dict[float, tuple[tuple[float, Algorithm], ...]] = {
    4: (
        (8, RING),
        (4096, DOUBLING),
        (8192, RING),
        (16384, DOUBLING),
        (65536, RING),
        (262144, SEGMENTED),
        (inf, RABENSEIFNER),
    ),
    8: ((16, RING), (8192, DOUBLING), (inf, RABENSEIFNER)),
    16: ((8192, DOUBLING), (inf, RABENSEIFNER)),
    32: ((64, SEGMENTED), (4096, DOUBLING), (inf, RABENSEIFNER)),
    64: ((128, SEGMENTED), (inf, RABENSEIFNER)),
    128: ((262144, DOUBLING), (inf, RABENSEIFNER)),
    256: ((131072, TREE), (262144, DOUBLING), (inf, RABENSEIFNER)),
    512: ((4096, TREE), (inf, RABENSEIFNER)),
    2048: ((2048, TREE), (16384, DOUBLING), (inf, RABENSEIFNER)),
    4096: ((2048, TREE), (4096, SEGMENTED), (16384, DOUBLING), (inf, RABENSEIFNER)),
    inf: ((2048, TREE), (16384, SEGMENTED), (32768, DOUBLING), (inf, RABENSEIFNER)),
}


def algorithm(machine: Machine, group: Group, nbytes: float) -> Algorithm:
    """Decide by ranks and bytes, as component `tuned` does by default.

    Left out: component `han`, which may come first on several nodes; the segments of a ring; and
    the non-blocking call, of component `libnbc`, that a run of ours makes.
    """
    rows = DECISIONS[list(DECISIONS)[bisect_right(list(DECISIONS)[:-1], group.size)]]
    return next(found for below, found in rows if nbytes < below)


LIBRARIES.add("openmpi")(Library("Open MPI", algorithm))
