"""English text that comes with CPython, its manual's topics, as bytes or words."""

import re
from collections import Counter
from functools import lru_cache

import numpy as np

from commsched.arrays import Array
from commsched.coding import parameters as read
from commsched.errors import CommschedError
from commsched.train.registry import DATA
from commsched.train.samples import FOLDS, Data, Samples, Source, split


@lru_cache(maxsize=1)
def manual() -> str:
    """Return the topics of the manual, by name."""
    from pydoc_data.topics import topics

    return " ".join(topics[name] for name in sorted(topics))


@lru_cache(maxsize=1)
def words() -> Array:
    """Return the manual as word numbers, the most frequent word 0: (words,) int64."""
    found = re.findall(r"\w+|[^\w\s]", manual().lower())
    number = {word: i for i, (word, _) in enumerate(Counter(found).most_common())}
    return np.array([number[word] for word in found])


def _held_out(samples: Samples, fold: int) -> Data:
    """Hold out one fold of neighbouring samples, because neighbours are alike."""
    place = np.arange(len(samples)) * FOLDS // len(samples)
    return split(samples, place == fold)


@DATA.family("bytes:64")
def of_bytes(parameters: list[str]) -> Source:
    """Read LENGTH: runs of LENGTH bytes, (m, LENGTH), and the byte after each byte."""
    read.at_most(parameters, 1)
    length = read.whole(parameters[0], "the length", 1, 10_000)

    def load(fold: int) -> Data:
        text = np.frombuffer(manual().encode(), np.uint8).astype(np.int64)
        count = (len(text) - 1) // length
        rows = (text[at : at + count * length].reshape(count, length) for at in (0, 1))
        return _held_out(Samples(*rows), fold)

    return load


@DATA.family("words:2000:3")
def of_words(parameters: list[str]) -> Source:
    """Read VOCABULARY and LAST: runs of LAST words, (m, LAST), and the word after each run, (m,).

    Words are numbered by frequency from 1 on; 0 is any word beyond the vocabulary.
    """
    if len(parameters) != 2:
        raise CommschedError(f"two parameters, the vocabulary and the words, got {len(parameters)}")
    vocabulary = read.whole(parameters[0], "the vocabulary", 2, 10**6)
    last = read.whole(parameters[1], "the words that are read", 1, 1000)

    def load(fold: int) -> Data:
        numbers = words() + 1
        numbers[numbers >= vocabulary] = 0
        windows = np.lib.stride_tricks.sliding_window_view(numbers, last + 1)
        return _held_out(Samples(windows[:, :last], windows[:, last]), fold)

    return load
