"""Partition of indices by hash: the owner of each element, and the memory of Zen's algorithm."""

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError
from commsched.kernels.device import device
from commsched.kernels.modules import module_of

SEED = 0x5A_45_4E_00  # of h0; h_i has SEED + i; equal on all ranks
CHUNK = 2**18  # indices that are hashed while they are in the cache
SERIAL = 64  # fewest slots of a serial area: in a smaller area all may collide


def murmur(index: Array, seed: int) -> Array:
    """Hash (n,) integers below 2^32 to 32 bits, as uint64: the finaliser of MurmurHash3.

    Source: Appleby, MurmurHash3 (fmix32), public domain, 2011.
    """
    h = index.astype(np.uint32)
    h += np.uint32(seed * 0x9E3779B1 & 0xFFFFFFFF)  # the seed changes the sequence
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
    return h.astype(np.uint64)


def below(index: Array, limit: int, seed: int) -> Array:
    """Hash (n,) integers evenly to [0, limit): the high word of hash times limit, as int64."""
    return (murmur(index, seed) * np.uint64(limit) >> np.uint64(32)).astype(np.int64)


class Groups(NamedTuple):
    """Indices grouped by their part: part p has order[ends[p] : ends[p + 1]]."""

    order: Array  # (n,) positions in the input, of one part after the other; within one ascending
    ends: list[int]  # (parts + 1,)


def grouped(index: Array, parts: int) -> Groups:
    """Group (n,) indices by h0 in O(n): counting sort of their parts, a byte or two each."""
    if parts == 1:
        return Groups(module_of(index).arange(len(index)), [0, len(index)])
    gpu = device(index)
    if gpu is not None and parts <= gpu.hashing.PARTS:
        return Groups(*gpu.hashing.grouped(index, parts, SEED))
    narrow = np.uint8 if parts <= 2**8 else np.uint16 if parts <= 2**16 else np.uint32
    part = module_of(index).empty(len(index), narrow)
    for first in range(0, len(index), CHUNK):
        part[first : first + CHUNK] = below(index[first : first + CHUNK], parts, SEED)
    ends = [0, *np.cumsum(np.bincount(part, minlength=parts)).tolist()]
    return Groups(np.argsort(part, kind="stable"), ends)  # short integers are sorted by radix


class Sets(NamedTuple):
    """The elements of a range in each part, I_p = {i : h0(i) = p}."""

    order: Array  # (numel,) int32, the elements of one part after the other; within one ascending
    place: Array  # (numel,) int32, of each element in the order
    ends: list[int]  # (parts + 1,)

    def part(self, number: int) -> Array:
        """Return the elements of a part, ascending."""
        return self.order[self.ends[number] : self.ends[number + 1]]


SETS = 8  # B per element


@lru_cache(maxsize=1024)
def index_sets(module: Any, numel: int, parts: int) -> Sets:
    """Return the cached sets of [0, numel) for arrays of `module`: SETS B per element.

    They are kept until `index_sets.cache_clear()`.
    """
    order, ends = grouped(module.arange(numel), parts)
    order = order.astype(np.int32)
    place = module.empty(numel, np.int32)
    place[order] = module.arange(numel, dtype=np.int32)
    return Sets(order, place, ends)


class HashMemory(NamedTuple):
    """The memory that hierarchical hashing fills."""

    parallel: Array  # (parts, slots) int64, indices from 1 on; 0: empty
    serial: list[Array]  # per part, the indices without a slot: (r,)


def placed(index: Array, parts: int, tries: int = 3) -> HashMemory:
    """Place (n,) ascending indices in their parts' memories by hash, as Zen does on a GPU.

    r1 = 2 n slots over all parts. In try i every index that has no place yet writes itself into
    slot h_i of its part if the slot is empty, and reads it back: one of several writers succeeds.
    After k tries all remaining indices go into the serial areas of their parts.
    Source: Wang et al., "Zen", OSDI 2025, algorithm 1 (k = 3, r1 = 2 nnz).
    """
    slots = max(1, -(-2 * len(index) // parts))
    gpu = device(index)
    if gpu is not None:
        parallel, rest = gpu.hashing.placed(index, parts, slots, tries, SEED)
        order, ends = grouped(rest, parts)
        return HashMemory(parallel, [rest[order[a:b]] for a, b in pairwise(ends)])
    module = module_of(index)
    memory = module.zeros(parts * slots, np.int64)
    part = below(index, parts, SEED)
    left = module.arange(len(index))
    for number in range(1, tries + 1):
        slot = part[left] * slots + below(index[left], slots, SEED + number)
        free = memory[slot] == 0
        memory[slot[free]] = index[left[free]] + 1
        left = left[memory[slot] != index[left] + 1]  # read back
    serial = [index[left[part[left] == p]] for p in range(parts)]
    return HashMemory(memory.reshape(parts, slots), serial)


def hierarchical(index: Array, parts: int, tries: int = 3) -> HashMemory:
    """Place (n,) indices as `placed` does, in serial areas of r2 = r1 / 10 slots over all parts.

    An area has at least `SERIAL` slots; an overflow is an error.
    Source: Wang et al., "Zen", OSDI 2025, algorithm 1 (r2 = r1 / 10).
    """
    memory = placed(index, parts, tries)
    area = max(SERIAL, -(-memory.parallel.shape[1] // 10))
    longest = max(map(len, memory.serial))
    if longest > area:
        raise CommschedError(
            f"hierarchical hashing: {longest} of {len(index)} indices are left for a serial area of"
            f" {area}; allowed are indices that spread over {parts} parts"
        )
    return memory


def grouped_in_memory(index: Array, parts: int) -> Groups:
    """Group (n,) ascending indices as `grouped` does, from the memories of `hierarchical`.

    Slots are in the order of their hashes, so that each part is sorted again. Many threads that
    write at once need the memories; one thread is faster by counting.
    """
    memory = hierarchical(index, parts)
    held = [
        np.sort(np.concatenate([slots[slots > 0] - 1, rest]))
        for slots, rest in zip(memory.parallel, memory.serial, strict=True)
    ]
    ends = [0, *np.cumsum([len(part) for part in held]).tolist()]
    return Groups(np.searchsorted(index, np.concatenate(held)), ends)
