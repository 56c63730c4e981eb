"""Pairs of words whose law is known: the first by Zipf's law, the second often its partner."""

from functools import lru_cache

import numpy as np

from commsched.arrays import Array, Floats
from commsched.coding import parameters as read
from commsched.train.registry import DATA
from commsched.train.samples import FOLDS, Data, Samples, Source, split

PAIRS, SEED = 50_000, 0  # drawn once: the same on all ranks
SCORED = 2000  # pairs of the held-out fold: each has a softmax over the vocabulary
PARTNER = 0.5  # share of the pairs whose second word is the partner of the first


@DATA.family("bigrams:2000")
def bigrams(parameters: list[str]) -> Source:
    """Read VOCABULARY: words, (m,), and the word after each of them, (m,).

    Words are numbered by frequency. With p_i ~ 1 / (i + 1) and q = PARTNER,

        P(i) = p_i,    P(j | i) = q [j = partner of i] + (1 - q) p_j,

    so that b words hit row i of an embedding with probability 1 - (1 - p_i)^b: law `zipf` with
    exponent 1. Partners are a fixed permutation.
    Source: Zipf, "Human behavior and the principle of least effort", 1949.
    """
    read.at_most(parameters, 1)
    vocabulary = read.whole(parameters[0], "the vocabulary", 2, 10**6)

    def load(fold: int) -> Data:
        found = split(_drawn(vocabulary), np.arange(PAIRS) % FOLDS == fold)
        return found._replace(held_out=found.held_out.spread(SCORED))

    return load


def frequencies(vocabulary: int) -> Floats:
    """Return the probability of each word: (vocabulary,)."""
    weights = 1.0 / np.arange(1, vocabulary + 1)
    found: Floats = weights / weights.sum()
    return found


@lru_cache(maxsize=2)
def partners(vocabulary: int) -> Array:
    """Return the partner of each word: (vocabulary,) int64."""
    return np.random.default_rng(SEED).permutation(vocabulary)


def least_loss(vocabulary: int) -> float:
    """Return the entropy of the second word given the first, nats: no net has a lower loss.

    Without the partner, a word of probability (1 - q) p adds -(1 - q) p log((1 - q) p).
    """
    p = frequencies(vocabulary)
    partner = p[partners(vocabulary)]
    rest = (1 - PARTNER) * p
    all_ = -float(np.sum(rest * np.log(rest)))
    alone, both = (1 - PARTNER) * partner, PARTNER + (1 - PARTNER) * partner
    return all_ + float(np.sum(p * (alone * np.log(alone) - both * np.log(both))))


@lru_cache(maxsize=1)
def _drawn(vocabulary: int) -> Samples:
    random, p = np.random.default_rng(SEED + 1), frequencies(vocabulary)
    first, other = (random.choice(vocabulary, PAIRS, p=p) for _ in range(2))
    follows = random.random(PAIRS) < PARTNER
    return Samples(first, np.where(follows, partners(vocabulary)[first], other))
