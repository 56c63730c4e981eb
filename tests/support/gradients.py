"""Gradients for tests: integer-valued, so that sums are exact, with every kind of support."""

import numpy as np

from commsched.machine.model import Group
from commsched.net.bucket import BucketSpec

SUPPORTS = ("full", "empty", "one", "alone", "skewed", "sparse")


def group(nodes: int, lanes: int) -> Group:
    """Ranks that fill one node after the other."""
    return Group(
        ranks=tuple(range(nodes * lanes)), nodes=tuple(np.repeat(range(nodes), lanes).tolist())
    )


def support(kind: str, rank: int, numel: int, rng: np.random.Generator) -> np.ndarray:
    """Which elements of one rank are not zero: (numel,) bool."""
    hit = np.zeros(numel, bool)
    if kind == "full" or (kind == "alone" and rank == 0):
        hit[:] = True
    elif kind == "one":
        hit[rng.integers(numel)] = True
    elif kind == "skewed":
        hit = rng.random(numel) < np.minimum(1.0, 3.0 / (1 + np.arange(numel)))
    elif kind == "sparse":
        hit = rng.random(numel) < 0.1
    else:
        assert kind in ("empty", "alone"), kind
    return hit


def gradient(kind: str, rank: int, numel: int, seed: int = 0) -> np.ndarray:
    """One rank's gradient: (numel,) float32, whole numbers from 1 to 8 with either sign."""
    rng = np.random.default_rng([seed, rank, numel])
    values = rng.integers(1, 9, numel) * rng.choice([-1, 1], numel)
    return np.where(support(kind, rank, numel, rng), values, 0).astype(np.float32)


def gradients(kind: str, ranks: int, numel: int, seed: int = 0) -> list[np.ndarray]:
    """Every rank's gradient."""
    return [gradient(kind, rank, numel, seed) for rank in range(ranks)]


def rounded(ranks: int, numel: int, seed: int = 0) -> list[np.ndarray]:
    """Normal values, whose sums round: the order of additions shows in the last bit."""
    return [
        np.random.default_rng([seed, rank]).standard_normal(numel).astype(np.float32)
        for rank in range(ranks)
    ]


def spec(numel: int, density: float = 0.1) -> BucketSpec:
    """A bucket of one tensor with an evenly spread support."""
    return BucketSpec.uniform(numel, density)


def bits(array: np.ndarray) -> np.ndarray:
    """The words of float32 values: equal bits, not just equal numbers."""
    return np.ascontiguousarray(array, np.float32).view(np.uint32)
