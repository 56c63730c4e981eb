"""Whole parameters from the parts that neighbouring ranks hold."""

from collections.abc import Callable, Mapping

import numpy as np

from commsched.arrays import Array
from commsched.kernels.modules import on_host
from commsched.train.layers.layer import TrainableNet
from commsched.train.neighbours import Neighbours, around
from commsched.train.workers.learner import flat


def put_together(
    net: TrainableNet,
    values: Mapping[str, Array],
    others: Neighbours,
    rank: int,
    width: int,
    *,
    experts: bool,
    asarray: Callable[[Array], Array],
) -> Mapping[str, Array]:
    """Return the whole values of parameters whose parts a rank's team of `width` ranks holds.

    experts: whether the team shares experts; else it is tensor-parallel.
    """
    cuts = {n: start.cut for n, start in net.tensors.items()}
    parted = {n: cut for n in values if (cut := cuts[n]) is not None and cut.experts == experts}
    if width == 1 or not parted:
        return values
    first = rank - rank % width
    team = range(first, first + width)
    own = np.concatenate([on_host(flat(values[name])) for name in parted])
    held = dict(around(others, team, rank, own, [len(own)] * width))
    found, at = dict(values), 0
    for name, cut in parted.items():
        stop = at + values[name].size
        parts = [held[each][at:stop].reshape(values[name].shape) for each in team]
        found[name], at = asarray(cut.joined(parts)), stop
    return found
