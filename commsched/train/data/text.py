"""Text that comes with CPython, as bytes or words: its manual's topics, its library's sources."""

import re
import sysconfig
from collections import Counter
from functools import lru_cache
from pathlib import Path

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


ELSEWHERE = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
SCORED = 256  # scored runs of the sources: scoring more would take longer than the training


@lru_cache(maxsize=1)
def library() -> bytes:
    """Return the sources of the standard library without its tests, by path: 12 MB of 3.11."""
    root = Path(sysconfig.get_path("stdlib"))
    paths = (path.relative_to(root) for path in root.rglob("*.py"))
    names = sorted(path.as_posix() for path in paths if not ELSEWHERE & {*path.parts})
    return b"\n".join((root / name).read_bytes() for name in names)


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

    return lambda fold: _held_out(_runs(manual().encode(), length), fold)


def _runs(text: bytes, length: int) -> Samples:
    numbers = np.frombuffer(text, np.uint8).astype(np.int64)
    count = (len(numbers) - 1) // length
    return Samples(*(numbers[at : at + count * length].reshape(count, length) for at in (0, 1)))


@DATA.family("sources:64")
def of_sources(parameters: list[str]) -> Source:
    """Read LENGTH: runs of bytes of the library's sources; only SCORED held-out runs are scored."""
    read.at_most(parameters, 1)
    length = read.whole(parameters[0], "the length", 1, 10_000)

    def load(fold: int) -> Data:
        found = _held_out(_runs(library(), length), fold)
        return found._replace(held_out=found.held_out.spread(SCORED))

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
