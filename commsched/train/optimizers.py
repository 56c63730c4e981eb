"""Optimisers, which work element by element, so that any piece of a tensor can be updated."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from commsched.arrays import Array
from commsched.errors import CommschedError

BEFORE_MEAN, BEFORE_SQUARE, LEAST = 0.9, 0.999, 1e-8  # Kingma & Ba, ICLR 2015
MOMENTUM = 0.9
GROWTH = 2000  # good steps before the loss scale doubles; source: Micikevicius et al., ICLR 2018
MOST = 2.0**24  # of a loss scale: float32 is exact for whole numbers up to here


# Changes `values` (n,) float32 in place by a gradient and the optimiser's state;
# arguments: values, gradient, kept, number of earlier updates, rate.
Update = Callable[[Array, Array, Mapping[str, Array], int, float], None]


class Optimizer(NamedTuple):
    """The rule by which a gradient changes its parameter."""

    update: Update
    words: tuple[str, ...] = ()  # names of the state arrays of each parameter


def _sgd(values: Array, gradient: Array, _: Mapping[str, Array], __: int, rate: float) -> None:
    """Update by x -= rate g."""
    values -= np.float32(rate) * gradient


def _momentum(
    values: Array, gradient: Array, kept: Mapping[str, Array], _: int, rate: float
) -> None:
    """Update by v = 0.9 v + g; x -= rate v."""
    velocity = kept["velocity"]
    velocity *= np.float32(MOMENTUM)
    velocity += gradient
    values -= np.float32(rate) * velocity


def _adam(
    values: Array, gradient: Array, kept: Mapping[str, Array], count: int, rate: float
) -> None:
    """Move by the mean gradient over the root of the mean square, both without their bias.

    Source: Kingma & Ba, "Adam", ICLR 2015.
    """
    mean, square = kept["mean"], kept["square"]
    mean *= np.float32(BEFORE_MEAN)
    mean += np.float32(1 - BEFORE_MEAN) * gradient
    square *= np.float32(BEFORE_SQUARE)
    square += np.float32(1 - BEFORE_SQUARE) * (gradient * gradient)
    step = rate / (1 - BEFORE_MEAN ** (count + 1))
    root = np.sqrt(square)
    root *= np.float32((1 - BEFORE_SQUARE ** (count + 1)) ** -0.5)
    root += np.float32(LEAST)
    values -= np.float32(step) * mean / root


OPTIMIZERS = {
    "sgd": Optimizer(_sgd),
    "momentum": Optimizer(_momentum, ("velocity",)),
    "adam": Optimizer(_adam, ("mean", "square")),
}
RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 2e-3}  # defaults for the nets of this package


def find_optimizer(name: str) -> Optimizer:
    """Return the optimiser called `name`."""
    if name not in OPTIMIZERS:
        raise CommschedError(f"no optimizer named {name!r}; known: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


class LossScale:
    """The factor of the loss, a power of 2, that keeps 16-bit gradients from vanishing.

    When a gradient overflows, the scale is halved and the step skipped; after 2000 good steps the
    scale is doubled.
    Source: Micikevicius et al., "Mixed precision training", ICLR 2018.
    """

    def __init__(self, value: float = 2.0**16, good: int = 0) -> None:
        self.value, self.good = value, good

    def after(self, overflow: bool) -> None:
        """Adapt the scale after a step; `overflowed` tells whether any rank overflowed."""
        if overflow:
            self.value, self.good = max(1.0, self.value / 2), 0
            return
        self.good += 1
        if self.good == GROWTH:
            self.value, self.good = min(MOST, self.value * 2), 0
