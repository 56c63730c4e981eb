"""Lists of whole runs of neighbours, such as rows of a table, coded by their bounds."""

import numpy as np

from commsched.arrays import Array, Floats
from commsched.coding.elias_fano import (
    NARROW,
    index_bytes,
    index_form,
    read_index,
    values_of,
    write_index,
)
from commsched.coding.packet import HEADER, count_of, fresh, require, tag_of
from commsched.kernels.exponents import pack_values
from commsched.kernels.modules import module_of

TAG = 0x53_4E_55_52  # "RUNS"
LEAST = 8  # mean elements of a run from which on a search for runs pays
SAMPLE = 256  # gaps of a list that are examined before all gaps


def bounds_of(index: Array) -> Array | None:
    """Return, alternately, where runs of (m,) ascending indices begin and end: (2 r,).

    None if a sample shows more than one run per LEAST indices.
    """
    count = len(index)
    step = max(1, (count - 1) // SAMPLE)
    near, far = index[: count - 1 : step], index[1::step]
    if count < LEAST or 2 * int(np.count_nonzero(far - near != 1)) > len(near):
        return None
    last = np.flatnonzero(index[1:] - index[:-1] != 1)
    if LEAST * (len(last) + 1) > count:
        return None
    bounds = module_of(index).empty(2 * len(last) + 2, np.int64)
    bounds[0], bounds[-1] = index[0], index[-1] + 1
    bounds[1:-1:2] = index.take(last) + 1
    bounds[2::2] = index.take(last + 1)
    return bounds


def size_of(bounds: Array, numel: int) -> int:
    """Count the bytes that describe the runs of a list below `numel`."""
    return index_form(numel + 1, len(bounds))[1]


def pack(bounds: Array, values: Array, numel: int, narrow: bool = False) -> Array:
    """Write runs below `numel`, (2 r,), and the values of all of them, (m,), as a packet."""
    body = pack_values(values, numel) if narrow else values.view(np.uint8)
    if body is None:
        return pack(bounds, values, numel)
    start = HEADER + len(body)
    size = len(body) + size_of(bounds, numel)
    packet = fresh(TAG | NARROW * narrow, len(bounds) // 2, size, values)
    packet[HEADER:start] = body
    write_index(bounds, numel + 1, packet[start:])
    return packet


def open_runs(packet: Array, numel: int) -> tuple[Array, Array]:
    """Split a packet into indices and values, (m,) each."""
    what = f"a list of runs of {numel} elements"
    narrow = tag_of(packet) == TAG | NARROW
    count = 2 * count_of(packet, TAG | NARROW * narrow, numel, what)
    require(count <= numel + 1, packet, what)
    _, size = index_form(numel + 1, count)
    start = len(packet) - size
    require(start >= HEADER, packet, what)
    bounds = read_index(packet, start, numel + 1, count, what)
    lengths = bounds[1::2] - bounds[::2]
    values = values_of(packet, start, int(lengths.sum()), numel if narrow else 0, what)
    steps = module_of(packet).ones(len(values), np.int32 if numel < 2**31 else np.int64)
    if count:
        steps[np.cumsum(lengths)[:-1]] += bounds[2::2] - bounds[1:-1:2]  # from run to run
        steps[0] = bounds[0]
    return np.cumsum(steps, dtype=steps.dtype), values


def nbytes(numel: Floats, runs: Floats, filled: Floats, each: float | Floats = 4.0) -> Floats:
    """Return the expected B of `runs` below `numel` with `filled` values in all, `each` B each."""
    found: Floats = HEADER + index_bytes(numel + 1, 2 * runs) + each * filled
    return found
