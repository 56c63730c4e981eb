"""A collective as a plug-in: an all-reduce on a square of ranks, rows first.

    commsched check examples/torus_2d.py --ranks 64,1024
    commsched plan bert-base --machine p3.16xlarge --nodes 128 --method torus-2d+dense \
        --plugin examples/torus_2d.py -o plan.json
"""

from itertools import chain

import numpy as np

from commsched.machine.model import Group
from commsched.schedule.circles import circles, ring_all_gather, ring_reduce_scatter
from commsched.schedule.registry import COLLECTIVES
from commsched.schedule.rounds import Goal, Schedule


@COLLECTIVES.add("torus-2d")
def torus_2d(group: Group) -> Schedule:
    """Reduce-scatter in each row, all-reduce in each column, all-gather in each row.

    R rows of C ranks, R C = p, as square as p allows: 2 (C - 1) + 2 (R - 1) rounds instead of
    2 (p - 1). Good for many ranks with links that are alike, where latency counts.
    Source: Mikami et al., "Massively distributed SGD: ImageNet/ResNet-50 training in a flash",
    arXiv 1811.05233.
    """
    rows = max(r for r in range(1, int(group.size**0.5) + 1) if group.size % r == 0)
    ranks = np.arange(group.size).reshape(rows, -1)  # (rows, columns)
    columns = ranks.shape[1]
    # Column c sums blocks [c R, (c + 1) R); its row r owns block c R + r.
    first = np.broadcast_to(np.arange(columns) * rows, ranks.shape)
    along = circles(ranks, first, first + rows)
    block = np.arange(group.size).reshape(columns, rows)
    down = circles(ranks.T, block, block + 1)
    return Schedule(
        name="torus-2d",
        goal=Goal.ALL_REDUCE,
        ranks=group.size,
        blocks=group.size,
        rounds=lambda: chain(
            ring_reduce_scatter(along),
            ring_reduce_scatter(down, merged=columns),
            ring_all_gather(down, merged=group.size),
            ring_all_gather(along, merged=group.size),
        ),
    )
