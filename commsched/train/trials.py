"""Trainings of one plan with several folds and seeds: each result, and the mean."""

from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from commsched import files
from commsched.training_log import Count, Positive, Share

LEVEL = 0.95  # of an interval


class HeldOutScore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The score of the held-out samples after `steps` steps."""

    steps: Count
    loss: float | None  # nats per guess; null where it is not finite
    accuracy: Share


class Trial(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training."""

    fold: Count
    seed: Count
    held_out: Annotated[
        tuple[HeldOutScore, ...], msgspec.Meta(min_length=1)
    ]  # the last one at the end
    sent_bytes: Positive  # per rank and step, the mean over both
    seconds: Positive | None = None  # of a processor, if one process trained all ranks

    @property
    def key(self) -> tuple[int, int]:
        """The key that identifies this training."""
        return self.fold, self.seed

    @property
    def end(self) -> HeldOutScore:
        """The score at the end."""
        return self.held_out[-1]


class Trials(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All trainings of one plan so far; `made`: their other settings."""

    format: Literal["commsched-trials/1"] = "commsched-trials/1"
    plan: str  # hash; a trial's random numbers are those of its own seed
    made: dict[str, str | int | float | bool]
    trials: tuple[Trial, ...] = ()


def spent(trainings: Sequence[Trial]) -> float | None:
    """Return the seconds of a processor of some trainings; None where one did not say."""
    known = [each.seconds for each in trainings if each.seconds is not None]
    return sum(known) if len(known) == len(trainings) else None


def read(path: Path) -> Trials:
    """Read a file of `write`."""
    return files.read(path, Trials)


def write(path: Path, found: Trials) -> None:
    """Write all trials so far; a reader sees the old file or the new one."""
    files.write(path, msgspec.to_builtins(found))


class Mean(NamedTuple):
    """A mean and half of its 95 % interval, which a single value does not have."""

    value: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.half is None else f" +- {self.half:.2g}")


def mean(values: Sequence[float]) -> Mean:
    """Estimate the mean of at least one value, drawn independently from a normal law.

        m +- t(n - 1) s / sqrt(n)

    s = standard deviation of the n values, t = quantile of Student's law.
    """
    count = len(values)
    half = None
    if count > 1:
        half = student(count - 1) * float(np.std(values, ddof=1)) / count**0.5
    return Mean(float(np.mean(values)), half)


def student(freedom: int) -> float:
    """Return the quantile of Student's law beyond which lie 2.5 %.

    Source: Abramowitz & Stegun, "Handbook of mathematical functions", 26.7.5.
    Holds to 0.3 % from 4 degrees of freedom on; below, the interval is too narrow.
    """
    z = NormalDist().inv_cdf((1 + LEVEL) / 2)
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    found: float = sum(term / freedom**power for power, term in enumerate(terms))
    return found
