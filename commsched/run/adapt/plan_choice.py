"""The rule that chooses between two plans that were tried in turns in real steps."""

from collections.abc import Sequence
from math import hypot
from typing import NamedTuple

import numpy as np


class Steps(NamedTuple):
    """The seconds of a step under a plan: a median and its error."""

    median: float
    error: float  # standard error of the median


def steps_of(seconds: Sequence[float]) -> Steps:
    """Return the median of some steps and its standard error, 1.2533 sigma / sqrt(n).

    sigma = 1.4826 times the median distance from the median, which outliers do not move.
    """
    median = float(np.median(seconds))
    sigma = 1.4826 * float(np.median(np.abs(np.asarray(seconds) - median)))
    return Steps(median, 1.2533 * sigma / len(seconds) ** 0.5)


def keeps(found: Steps, dense: Steps) -> bool:
    """Tell whether a plan stays: it is faster by more than twice the error of the difference.

    For normal errors, an equally fast plan then counts as faster in 2 of 100 cases.
    """
    return found.median + 2 * hypot(found.error, dense.error) < dense.median
