"""Lists of non-zeros on their way through a method: taken, cut, joined and left."""

import numpy as np
import numpy.typing as npt

from commsched.codecs import CODECS, Array, State, coo, elias
from commsched.codecs.packet import HEADER, tag_of
from commsched.kernels.merge import Listed, listed
from commsched.plan.bucket import BucketSpec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def taken(state: State) -> Listed:
    """The non-zeros of this rank's gradient."""
    return Listed(*state["list"]) if "list" in state else listed(state["gradient"])


def ends(index: Array, cuts: Ints) -> list[int]:
    """Where the entries of each run begin in ascending indices; in their own type, uncopied."""
    return np.searchsorted(index, cuts.astype(index.dtype)).tolist()  # type: ignore[no-any-return]


def join(lists: list[Listed], starts: list[int], index: Array, values: Array) -> None:
    """Write lists that count from their own starts, one after the other."""
    first = 0
    for part, start in zip(lists, starts, strict=True):
        stop = first + len(part.index)
        np.add(part.index, start, out=index[first:stop], casting="unsafe")
        values[first:stop] = part.values
        first = stop


def leave(state: State, lists: list[Listed], starts: list[int]) -> None:
    """Leave ascending lists of the sum, which count from `starts`, as the caller wants it."""
    if "list" in state:
        count = sum(len(each.index) for each in lists)
        last = starts[-1] + (int(lists[-1].index[-1]) if len(lists[-1].index) else 0)
        index = np.empty(count, np.int32 if last < 2**31 else np.int64)
        values = np.empty(count, np.float32)
        join(lists, starts, index, values)
        state["list"] = Listed(index, values)
        return
    values = state["result"] = state["gradient"]
    values.fill(0)
    for (index, sums), start in zip(lists, starts, strict=True):
        values[start:][index] = sums


def opened(packet: Array, numel: int) -> Listed:
    """The list in a packet of either form."""
    if tag_of(packet) == coo.TAG:
        return Listed(*coo.Coo.open(packet, numel))
    index, values = elias.open_list(packet, numel)
    return listed(values) if isinstance(index, slice) else Listed(index, values)


def compact(found: Listed, numel: int) -> Array:
    """The packet of a list of a run of `numel` elements, for memory: quickly written and read."""
    if 2 * len(found.index) < numel:
        return coo.pack(found.index, found.values)
    return elias.pack_list(found.index, found.values, numel)


def compact_bytes(
    spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints, coded: Floats | None = None
) -> Floats:
    """Expected bytes of such packets of runs [first, stop), `merged` ranks summed: (m,).

    `coded` are those of the Elias-Fano lists, where they are known.
    """
    if coded is None:
        coded = CODECS["elias"].nbytes(spec, first, stop, merged)
    filled = spec.nonzeros(first, stop, merged)
    return np.where(2 * filled < stop - first, HEADER + 8.0 * filled, coded)
