"""Gradients and sums as lists of non-zeros, if the caller hands over lists."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from commsched.arrays import Array
from commsched.coding.codec import Codec, State
from commsched.kernels.merge import Listed, listed
from commsched.kernels.modules import module_of
from commsched.machine.model import Device

# Without a measured device: B of memory traffic that take as long as merging a non-zero.
# Measured: 8 ns with copies at 15 GB/s (2 lists, 4 M elements, 5 %).
MERGE_TRAFFIC = 128.0


def taken(state: State) -> Listed:
    """Return the non-zeros of this rank's gradient."""
    return Listed(*state["list"]) if "list" in state else listed(state["gradient"])


def merge_seconds(nonzeros: float) -> Callable[[Device], float]:
    """Return the seconds to merge several lists with `nonzeros` entries in all."""
    return lambda device: nonzeros * (device.merge or MERGE_TRAFFIC / device.bandwidth)


def joined(codec: Codec, packets: Sequence[Array], cuts: Sequence[int]) -> Listed:
    """Read the packets of neighbouring runs, cut at `cuts` (packets + 1,), as one list."""
    runs = list(zip(packets, pairwise(cuts), strict=True))
    return joint([(codec.listed(packet, stop - at), at) for packet, (at, stop) in runs])


def joint(parts: Sequence[tuple[Listed, int]]) -> Listed:
    """Put lists of neighbouring runs one after the other; each counts from its run's start.

    A single list that begins at 0 is not copied.
    """
    (index, values), start = parts[0]
    if len(parts) == 1 and start == 0:
        return Listed(index.astype(np.int64, copy=False), values)
    module = module_of(parts[0][0].values)
    index = [part.index.astype(np.int64, copy=False) + start for part, start in parts]
    return Listed(module.concatenate(index), module.concatenate([p.values for p, _ in parts]))


def left(state: State, total: Listed) -> None:
    """Store a sum as the caller wants it: as a list, or over the gradient."""
    if "list" in state:
        state["list"] = total
        return
    values = state["result"] = state["gradient"]
    values.fill(0)
    values[total.index] = total.values
