"""Counter-based random numbers keyed by (seed, step, rank, name): the same on every side."""

import hashlib

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]


def _mix(x: Words) -> Words:
    """Scramble 64-bit words. Source: SplitMix64 finaliser (Steele, Lea, Flood, OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def name_key(name: str) -> int:
    """Return 64 bits that stand for a name, the same in every process."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def keys(seed: int, step: int, ranks: npt.NDArray[np.int64], name: str) -> Words:
    """One well-mixed 64-bit key per rank: (ranks,)."""
    key = np.array(name_key(name), np.uint64)
    with np.errstate(over="ignore"):
        for part in (seed, step):
            key = _mix(key + np.array(part, np.uint64) * np.uint64(0x9E3779B97F4A7C15))
        return _mix(key + (ranks.astype(np.uint64) + np.uint64(1)) * np.uint64(0xD1B54A32D192ED03))


def normal(
    seed: int, step: int, ranks: npt.NDArray[np.int64], name: str
) -> npt.NDArray[np.float64]:
    """One standard normal number per rank by the Box-Muller transform: (ranks,)."""
    first = keys(seed, step, ranks, name)
    second = _mix(first ^ np.uint64(0x9E3779B97F4A7C15))
    u = ((first >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    v = (second >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return np.sqrt(-2.0 * np.log(u)) * np.cos(2.0 * np.pi * v)


def jitter(
    sigma: float, seed: int, step: int, ranks: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Factor on each rank's compute time in one step: log-normal with mean 1: (ranks,)."""
    if sigma == 0.0:
        return np.ones(len(ranks))
    return np.exp(sigma * normal(seed, step, ranks, "jitter") - sigma**2 / 2)


def generator(seed: int, step: int, rank: int, name: str) -> np.random.Generator:
    """A generator for bulk draws of one (seed, step, rank, name)."""
    key = int(keys(seed, step, np.array([rank]), name)[0])
    return np.random.Generator(np.random.Philox(key=key))
