"""Samples with their right classes, and the held-out share of the samples."""

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

    Objects compare by identity, not by values.
    """

    inputs: Array  # float32, or whole numbers
    targets: Array  # whole numbers: a class per sample, or per position of a sample

    def __len__(self) -> int:
        return len(self.inputs)

    def of(self, index: Array) -> "Samples":
        """Return the samples with these indices."""
        return Samples(self.inputs[index], self.targets[index])

    def spread(self, most: int) -> "Samples":
        """Return at most `most` samples, evenly spread over all."""
        return self if len(self) <= most else self.of(np.arange(most) * len(self) // most)


class Data(NamedTuple):
    """Training samples, and held-out samples."""

    train: Samples
    held_out: Samples

    def validation(self) -> "Data":
        """Hold out the last fifth of the training samples; earlier held-out samples are not used.

        At most as many samples are held out as before.
        """
        count = len(self.train)
        found = split(self.train, np.arange(count) * FOLDS // count == FOLDS - 1)
        return found._replace(held_out=found.held_out.spread(len(self.held_out)))


Source = Callable[[int], Data]  # argument: number of the held-out fold, from 0 on


def split(samples: Samples, held_out: Array) -> Data:
    """Hold out the samples of a mask, (samples,)."""
    return Data(samples.of(np.flatnonzero(~held_out)), samples.of(np.flatnonzero(held_out)))


def scikit_learn(what: str, file: str) -> Path:
    """Find a file of scikit-learn without importing it, which would take 2 s on every rank."""
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise CommschedError(
            f"the {what} come with scikit-learn, which is not installed; {install('train')}"
        )
    return Path(found.submodule_search_locations[0], file)
