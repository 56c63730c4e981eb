"""Trainings of one plan with several folds and seeds: each result, and the mean."""

from collections.abc import Sequence
from math import cos, pi, sin, sqrt, tan
from pathlib import Path
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


class OneTraining(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One training."""

    fold: Count
    seed: Count
    held_out: Annotated[
        tuple[HeldOutScore, ...], msgspec.Meta(min_length=1)
    ]  # the last one at the end
    sent_bytes: Positive  # per rank and step: mean over ranks and steps
    seconds: Positive | None = None  # processor time; null: `train` under mpiexec

    @property
    def key(self) -> tuple[int, int]:
        """The key that identifies this training."""
        return self.fold, self.seed

    @property
    def end(self) -> HeldOutScore:
        """The score at the end."""
        return self.held_out[-1]


class Trainings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All trainings of one plan so far; `made`: their other settings."""

    format: Literal["commsched-trials/1"] = "commsched-trials/1"
    plan: str  # hash; random numbers of a training are those of its own seed
    made: dict[str, str | int | float | bool]
    trials: tuple[OneTraining, ...] = ()


def spent(trainings: Sequence[OneTraining]) -> float | None:
    """Return the processor seconds of some trainings; None if one did not record them."""
    known = [each.seconds for each in trainings if each.seconds is not None]
    return sum(known) if len(known) == len(trainings) else None


def read(path: Path) -> Trainings:
    """Read a file that `write` has written."""
    return files.read(path, Trainings)


def write(path: Path, found: Trainings) -> None:
    """Write all trials so far; a reader sees the old file or the new one."""
    files.write(path, msgspec.to_builtins(found))


class Mean(NamedTuple):
    """A mean and half of its 95 % interval, which a single value does not have."""

    value: float
    half: float | None

    def __str__(self) -> str:
        return f"{self.value:.4g}" + ("" if self.half is None else f" +- {self.half:.2g}")

    def in_points(self, sign: str = "") -> str:
        """Return a share in per cent, or a difference of shares in points."""
        half = "" if self.half is None else f" +- {100 * self.half:.2f}"
        return f"{100 * self.value:{sign}.2f}{half}"


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
    """Return the bound t: LEVEL of Student's law lies between -t and t.

    Source: Abramowitz & Stegun, "Handbook of mathematical functions", 26.7.3 and 26.7.4.
    """
    odd = freedom % 2

    def within(angle: float) -> float:
        """Return the share of the law below sqrt(freedom) tan(angle)."""
        term, total = cos(angle) if odd else 1.0, 0.0
        for k in range(1 + odd, freedom, 2):
            total += term
            term *= k / (k + 1) * cos(angle) ** 2
        return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total

    low, high = 0.0, pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle) < LEVEL else (low, middle)
    return sqrt(freedom) * tan(low)
