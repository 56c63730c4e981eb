"""Samples with their right classes, and the share of them that is held out."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError, install

FOLDS = 5  # parts of the samples; one is held out


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Inputs of a net and the right classes; the first axis of both is the samples.

    Equal are only the same samples, without a look at their values.
    """

    inputs: Array  # float32, or whole numbers
    targets: Array  # whole numbers: a class per sample, or one per place of it

    def __len__(self) -> int:
        return len(self.inputs)

    def of(self, index: Array) -> "Samples":
        """Return the samples with these numbers."""
        return Samples(self.inputs[index], self.targets[index])

    def spread(self, most: int) -> "Samples":
        """Return at most `most` samples, evenly spread over all."""
        return self if len(self) <= most else self.of(np.arange(most) * len(self) // most)


class Data(NamedTuple):
    """Samples to learn, and held-out samples to score."""

    train: Samples
    held_out: Samples

    def validation(self) -> "Data":
        """Hold out the last fifth of the samples to learn; nobody sees what was held out before.

        No more are scored than were held out before.
        """
        count = len(self.train)
        found = split(self.train, np.arange(count) * FOLDS // count == FOLDS - 1)
        return found._replace(held_out=found.held_out.spread(len(self.held_out)))


Source = Callable[[int], Data]  # argument: number of the held-out fold, from 0 on


def split(samples: Samples, held_out: Array) -> Data:
    """Hold out the samples of a mask, (samples,)."""
    return Data(samples.of(np.flatnonzero(~held_out)), samples.of(np.flatnonzero(held_out)))


def scikit_learn(what: str, file: str) -> Path:
    """Find a file that comes with scikit-learn, whose import would take 2 s on every rank."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise CommschedError(
            f"the {what} come with scikit-learn, which is not installed; {install('train')}"
        )
    return Path(found.submodule_search_locations[0], file)
