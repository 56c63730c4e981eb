"""Partition of indices by hash on a GPU. Twins of `hashing.grouped` and `hashing.placed`."""

import numpy as np

from commsched.arrays import Array
from commsched.kernels.cuda import select
from commsched.kernels.cuda.launch import THREADS, start
from commsched.kernels.modules import module_of

PARTS = 256  # at most
TILE = 8 * THREADS  # indices of a block
LOW = np.uint64(0xFFFFFFFF)  # low word of a slot: the index, from 1 on; the high word: tries left


def grouped(index: Array, parts: int, seed: int) -> tuple[Array, list[int]]:
    """Return the positions of (n,) int64 indices by part, and each part's end. parts <= PARTS."""
    module, tiles = module_of(index), -(-len(index) // TILE)
    counts = module.empty(parts * tiles + 1, np.uint32)
    order, ends = module.empty(len(index), np.int64), module.empty(parts + 1, np.uint32)
    given = index, np.int64(len(index)), np.int32(parts), np.uint32(seed), counts
    start("hashing", "count_parts", tiles, *given)
    select.scan(counts)
    start("hashing", "write_groups", tiles, *given, order, ends)
    return order, ends.tolist() if tiles else [0] * (parts + 1)


def placed(index: Array, parts: int, slots: int, tries: int, seed: int) -> tuple[Array, Array]:
    """Place (n,) ascending int64 indices in (parts, slots) int64, from 1 on; 0 is empty.

    The second array has the indices without a slot, ascending.
    """
    module, count = module_of(index), len(index)
    memory = module.zeros(parts * slots, np.uint64)
    rest = module.zeros(count + 1, np.uint32)
    given = np.int64(count), np.int32(parts), np.uint32(slots), np.int32(tries), np.uint32(seed)
    start("hashing", "place", -(-count // THREADS), index, *given, memory, rest)
    left = module.sort(rest[: int(rest[-1])]).astype(np.int64)
    return (memory & LOW).astype(np.int64).reshape(parts, slots), left
