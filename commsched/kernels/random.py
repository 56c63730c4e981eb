"""Counter-based random numbers keyed by (seed, step, rank, name): equal on every rank."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from commsched.arrays import Array
from commsched.kernels.compiled import compiled
from commsched.kernels.device import device
from commsched.kernels.modules import module_of

Words = npt.NDArray[np.uint64]
WORD = 2**64 - 1


def _mix(x: Any) -> Any:
    """Scramble an int of 64 bits, or words of an array.

    Source: SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014).
    """
    x = x & WORD
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ x >> 27) * 0x94D049BB133111EB & WORD
    return x ^ x >> 31


def name_key(name: str) -> int:
    """Return a 64-bit hash of a name, equal in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _of_all_ranks(seed: int, step: int, name: str) -> int:
    """Return the 64-bit key from which the ranks' keys follow, ten times as fast as by NumPy."""
    seeded = _mix(name_key(name) + seed * 0x9E3779B97F4A7C15)
    found: int = _mix(seeded + step * 0x9E3779B97F4A7C15)
    return found


def keys(seed: int, step: int, ranks: npt.NDArray[np.int64], name: str) -> Words:
    """Return one well-mixed 64-bit key per rank: (ranks,)."""
    own = (ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03)
    found: Words = _mix(own + np.uint64(_of_all_ranks(seed, step, name)))
    return found


def key_of(seed: int, step: int, rank: int, name: str) -> int:
    """Return the 64-bit key of one rank, as `keys` does for many."""
    found: int = _mix(_of_all_ranks(seed, step, name) + (rank + 1) * 0xD1B54A32D192ED03)
    return found


def normal(
    seed: int, step: int, ranks: npt.NDArray[np.int64], name: str
) -> npt.NDArray[np.float64]:
    """Return one standard normal number per rank by the Box-Muller transform: (ranks,)."""
    first = keys(seed, step, ranks, name)
    second: Words = _mix(first ^ np.uint64(0x9E3779B97F4A7C15))
    u = ((first >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    v = (second >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)


def uniform(
    seed: int, step: int, ranks: npt.NDArray[np.int64], name: str
) -> npt.NDArray[np.float64]:
    """Return one number per rank, evenly drawn from (0, 1): (ranks,)."""
    drawn = keys(seed, step, ranks, name) >> np.uint64(11)
    found: npt.NDArray[np.float64] = (drawn.astype(np.float64) + 0.5) * 2.0**-53
    return found


def jitter(
    sigma: float, seed: int, step: int, ranks: npt.NDArray[np.int64], name: str = "jitter"
) -> npt.NDArray[np.float64]:
    """Return the factor on each rank's time for work in a step, log-normal, mean 1: (ranks,)."""
    if sigma == 0.0:
        return np.ones(len(ranks))
    return np.exp(sigma * normal(seed, step, ranks, name) - sigma**2 / 2)


def exponential(
    mean: float | npt.NDArray[np.float64],
    seed: int,
    step: int,
    ranks: npt.NDArray[np.int64],
    name: str,
) -> npt.NDArray[np.float64]:
    """Return one exponentially distributed number per rank, (ranks,).

    mean: one for all ranks, or one of each, (ranks,).
    """
    u = (keys(seed, step, ranks, name) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    found: npt.NDArray[np.float64] = -mean * np.log1p(-u)
    return found


def generator(seed: int, step: int, rank: int, name: str) -> np.random.Generator:
    """Return a generator for bulk draws of one (seed, step, rank, name)."""
    return np.random.Generator(np.random.Philox(key=key_of(seed, step, rank, name)))


def run_key(state: Mapping[str, Any], start: int, *, common: bool = False) -> int:
    """Return the 64-bit key of a run in a step, from offset and the state's seed, step, rank, name.

    `common` leaves out the rank, so that all ranks have equal bits. Missing entries count as 0.
    """
    rank = -1 if common else int(state.get("rank", 0))
    name = f"{state.get('name', '')}/{start}"
    return key_of(int(state.get("seed", 0)), int(state.get("step", 0)), rank, name)


def hashes(key: int, numbers: Array) -> Array:
    """Return a random 32-bit word for each number: (n,) int64 -> (n,) uint32.

    Source of the hash: Wellons, "Prospecting for hash functions" (lowbias32), 2018.
    """
    word = numbers.astype(np.uint32) ^ np.uint32(key & 0xFFFFFFFF)
    word ^= (numbers >> 32).astype(np.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        word ^= word >> np.uint32(shift)
        word *= np.uint32(factor)
        word ^= np.uint32(key >> 32)
    return word ^ (word >> np.uint32(16))


class Dither:
    """Random 16-bit numbers for the elements of a run in order, in pieces of up to `size`.

    A 32-bit word is a hash of the key and the word's number, as in `hashes`, and serves two
    elements. Memory is reused.
    """

    def __init__(self, key: int, size: int, like: Array) -> None:
        module = module_of(like)
        half = (size + 1) // 2
        self._counter = module.arange(half, dtype=np.uint32)
        self._word, self._other = (module.empty(half, np.uint32) for _ in range(2))
        self._key = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
        self._done = 0
        self._size = half

    def next(self, out: Array) -> Array:
        """Fill `out` (m,) int32 with numbers in [0, 65536), and return it."""
        half = (len(out) + 1) // 2
        assert half <= self._size
        done = np.uint32(self._done & 0xFFFFFFFF)
        self._done += half
        gpu, fast = device(out), compiled(out)
        if gpu is not None:
            given = np.int64(len(out)), done, *self._key, out
            gpu.start("random", "dither", gpu.strides(len(out)), *given)
            return out
        if fast is not None:
            fast.dither(done, *self._key, out)
            return out
        word, other = self._word[:half], self._other[:half]
        np.add(self._counter[:half], done, out=word)
        np.bitwise_xor(word, self._key[0], out=word)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            np.right_shift(word, np.uint32(shift), out=other)
            np.bitwise_xor(word, other, out=word)
            np.multiply(word, np.uint32(factor), out=word)
            np.bitwise_xor(word, self._key[1], out=word)
        np.right_shift(word, np.uint32(16), out=other)
        np.bitwise_xor(word, other, out=word)
        words = out.view(np.uint32)
        np.bitwise_and(word, np.uint32(0xFFFF), out=words[:half])
        rest = len(out) - half
        np.right_shift(word[:rest], np.uint32(16), out=words[half:])
        return out
