"""Lists of non-zeros on their way through a method: taken, cut, joined and left."""

import numpy as np
import numpy.typing as npt

from commsched.codecs import CODECS, Array, State, coo, elias, runs
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
    """The list in a packet of any form."""
    tag = tag_of(packet)
    if tag == coo.TAG:
        return Listed(*coo.Coo.open(packet, numel))
    if tag == runs.TAG:
        return Listed(*runs.open_runs(packet, numel))
    index, values = elias.open_list(packet, numel)
    return listed(values) if isinstance(index, slice) else Listed(index, values)


def coded(found: Listed, numel: int) -> Array:
    """The packet of a list of a run of `numel` elements, for the wire: of the fewest bytes."""
    packet = _in_runs(found, numel)
    return elias.pack_list(found.index, found.values, numel) if packet is None else packet


def coded_bytes(spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
    """Expected bytes of such packets of runs [first, stop), `merged` ranks summed: (m,)."""
    lists = CODECS["elias"].nbytes(spec, first, stop, merged)
    whole = _runs_bytes(spec, first, stop, merged)
    return np.where(np.isnan(whole), lists, whole)


def compact(found: Listed, numel: int, start: int = 0) -> Array:
    """The packet of a list that counts from `start`, for memory: quickly written and read."""
    packet = _in_runs(found, numel, start)
    if packet is not None:
        return packet
    index, values = found
    if 2 * len(index) < numel:
        return coo.pack(index, values, start)
    return elias.pack_list(index - start if start else index, values, numel)


def compact_bytes(spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
    """Expected bytes of such packets of runs [first, stop), `merged` ranks summed: (m,)."""
    filled = spec.nonzeros(first, stop, merged)
    whole = _runs_bytes(spec, first, stop, merged)
    plain = np.where(2 * filled < stop - first, HEADER + 8.0 * filled, np.nan)
    if np.isnan(plain).any():
        plain = np.where(np.isnan(plain), CODECS["elias"].nbytes(spec, first, stop, merged), plain)
    return np.where(np.isnan(whole), plain, whole)


def _in_runs(found: Listed, numel: int, start: int = 0) -> Array | None:
    """A list as runs of neighbours, where they are long and values of all are not cheaper."""
    bounds = runs.bounds_of(found.index)
    if bounds is None:
        return None
    bounds -= start
    if runs.size_of(bounds, numel) + 4 * len(found.values) >= 4 * numel:
        return None
    return runs.pack(bounds, found.values, numel)


def _runs_bytes(spec: BucketSpec, first: Ints, stop: Ints, merged: int | Ints) -> Floats:
    """Expected bytes of lists as runs, NaN where they are not written so: (m,)."""
    numel = np.asarray(np.asarray(stop) - first, np.float64)
    filled, count = spec.nonzeros(first, stop, merged), spec.runs(first, stop, merged)
    found = runs.nbytes(numel, count, filled)
    worth = (runs.LEAST * count <= filled) & (found < HEADER + 4.0 * numel)
    return np.where(worth, found, np.nan)
